"""The daemon's own failures; the packages below have their own trees under the same root."""

import re
from collections import Counter

import msgspec

from protocol.errors import IntellectError

_PARTICULAR = re.compile(r"'[^']*'|\"[^\"]*\"|\d[\d.]*")


class Mistake(msgspec.Struct, frozen=True):
    """A mistake. place: where it stands, a file and line or a setting; what: is wrong; remedy: what to do about it;
    size: how bad it is beside others of its kind."""

    place: str
    what: str
    remedy: str
    size: int = 0

    @property
    def kind(self) -> str:
        """What is wrong without what is particular to this one, to count it by."""
        return _PARTICULAR.sub("...", self.what.partition(";")[0])[:120]


class Mistakes:
    """All mistakes of something: the first MOST of them whole, the rest counted by kind; the worst of each kind."""

    MOST = 20

    def __init__(self) -> None:
        self.first: list[Mistake] = []
        self.kinds: Counter[str] = Counter()
        self.worst: dict[str, Mistake] = {}

    def add(self, finding: Mistake) -> None:
        if len(self.first) < self.MOST:
            self.first.append(finding)
        kind = finding.kind if finding.kind in self.kinds or len(self.kinds) < 1000 else "others"
        self.kinds[kind] += 1
        self._weigh(kind, finding)

    def _weigh(self, kind: str, finding: Mistake) -> None:
        if kind not in self.worst or finding.size > self.worst[kind].size:
            self.worst[kind] = finding

    def take(self, error: IntellectError, place: str) -> None:
        """What an error says; of one that has findings of its own, each of them."""
        found = getattr(error, "findings", None)
        if not isinstance(found, Mistakes):
            return self.add(Mistake(place, f"{error.what}: {error.why}", error.remedy))
        return self.join(found)

    def join(self, found: "Mistakes") -> None:
        """Take in all of another look."""
        self.first += found.first[: self.MOST - len(self.first)]
        self.kinds += found.kinds
        for kind, worst in found.worst.items():
            self._weigh(kind, worst)

    @property
    def total(self) -> int:
        return self.kinds.total()

    def rest(self) -> dict[str, int]:
        """kind -> how many there are beside the first ones."""
        return dict(self.kinds - Counter(one.kind for one in self.first))


class NodeError(IntellectError):
    """Something about this node: its configuration, its state directory, its keys."""


class ConfigError(NodeError):
    """A setting that is missing, malformed or contradicts another."""


class StateError(NodeError):
    """The state directory cannot be used: locked, unwritable, full or damaged."""


class KeyError_(NodeError):
    """A key file that is missing, exposed, damaged or locked with another password."""


class EvictedError(NodeError):
    """This node's stake was taken or its membership ended by the quorum."""


class RunFileError(NodeError):
    """A run file, or a model or data set that it names, cannot be used."""
