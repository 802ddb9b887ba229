"""The catalogue of a pool: which environment packages its members offer, and what reviewers found. Pure.

A name belongs to nobody: two packages of one name, or of names that look alike, are both told with who offers them.
What an offer says of its package is believed once that is here and says the same (`services.environment_catalogue`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from node.bounded_dict import BoundedDict
from node.environments.builtin import BUILTIN
from protocol.identity import Address
from protocol.messages import EnvironmentPublished, Signed

_LOOKS = str.maketrans({"0": "o", "1": "l", "i": "l", "5": "s", "-": None, "_": None})


class Reviews(msgspec.Struct, frozen=True):
    """reviewers: who gave a report; agreeing: of these, with the report that most gave; report: its root, hex; asked:
    how many reports the task wanted."""

    reviewers: int
    agreeing: int
    report: str
    asked: int

    @property
    def confirmed(self) -> bool:
        return self.agreeing * 2 > self.asked


class Offer(msgspec.Struct, frozen=True):
    """What a node offers of a package. root: hex."""

    name: str
    root: str
    size: int
    determinism: str
    turns: int
    about: str


class CatalogueEntry(Offer, frozen=True):
    """One package. publishers: who offers it; alike: other packages whose names look the same, as NAME@ROOT."""

    publishers: tuple[Address, ...]
    alike: tuple[str, ...]
    reviews: Reviews | None


class ReviewBook:
    """What reviewers committed to, by package: each reviewer's newest report on each task."""

    def __init__(self) -> None:
        self._given: BoundedDict[tuple[str, bytes, Address], tuple[str, int]] = BoundedDict(1024)

    def heard(self, package: str, task: bytes, node: Address, report: str, asked: int) -> None:
        self._given[package, task, node] = report, asked

    def of(self, package: str) -> Reviews | None:
        """Of the task with most reports."""
        tasks: dict[bytes, dict[Address, tuple[str, int]]] = {}
        for (root, task, node), given in self._given.items():
            if root == package:
                tasks.setdefault(task, {})[node] = given
        best = max(tasks.values(), key=len, default=None)
        if best is None:
            return None
        (report, agreeing), *_ = Counter(report for report, _ in best.values()).most_common(1)
        return Reviews(len(best), agreeing, report, next(iter(best.values()))[1])


def entries(offers: Iterable[Signed[EnvironmentPublished]], reviews: ReviewBook) -> list[CatalogueEntry]:
    """One for each name and root that is offered, by name."""
    newest: dict[tuple[str, str], EnvironmentPublished] = {}
    publishers: dict[tuple[str, str], dict[Address, None]] = {}
    for signed in offers:
        key = signed.message.name, signed.message.root.hex()
        newest[key] = signed.message
        publishers.setdefault(key, {})[signed.author] = None
    alike = _alike(newest)
    return [
        CatalogueEntry(
            *key,
            one.size,
            one.determinism,
            one.turns,
            one.about,
            tuple(publishers[key]),
            alike[key],
            reviews.of(key[1]),
        )
        for key, one in sorted(newest.items())
    ]


def look(name: str) -> str:
    """What two names have in common that a reader may take for each other."""
    return name.translate(_LOOKS).replace("rn", "m").replace("vv", "w")


def _alike(keys: Mapping[tuple[str, str], object]) -> dict[tuple[str, str], tuple[str, ...]]:
    looks: dict[str, list[str]] = {}
    # A package may look like an environment that comes with the program.
    for name in BUILTIN:
        looks.setdefault(look(name), []).append(f"{name} (built in)")
    for name, root in sorted(keys):
        looks.setdefault(look(name), []).append(f"{name}@{root}")
    return {(name, root): tuple(one for one in looks[look(name)] if one != f"{name}@{root}") for name, root in keys}
