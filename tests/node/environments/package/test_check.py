"""`env check`: which packages are fit for a run, and what is said of the others."""

import itertools
from typing import Any

import pytest

from node.environments.errors import PackageError
from node.environments.package import check
from node.environments.package.check import PackageFinding, PackageReport, PlayWay, _hash_seed, check_package
from node.environments.package.sweep import drawn, garbage, spread
from node.environments.package.templates import KINDS, template
from node.sandbox import Undecided
from tests.node.environments.package.honesty import DISHONEST, HONEST
from tests.node.environments.sandboxes import OpenSandbox

WAYS = [PlayWay("here", "pair", OpenSandbox), PlayWay("there", "pair", OpenSandbox)]


def checked(code: str, ways: Any = WAYS, most: int = 2) -> PackageReport:
    return check_package({"environment.py": code.encode()}, ways, most)


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"session"}))  # which needs machines: test_sessions
def test_what_env_new_writes_is_fit_for_a_run(kind: str) -> None:
    report = checked(template(kind, "mine"))
    assert report.good and report.manifest.name == "mine" and report.checked == 2 < report.rows
    assert report.ways == ("here", "there") and report.faults == 0


def findings(code: str) -> list[PackageFinding]:
    return checked(code, WAYS[:1], most=1).findings


SINGLE = template("single", "mine")
RETURN = 'return float(answer == row["capital"].lower())'


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('return row["capital"]', 'return "x"', "the golden answer gets 0"),
        ("def golden", "def gold", "there is no golden answer"),
        (RETURN, "return 1.0", "an empty answer gets 1"),
        (RETURN, 'return float("passed" in turns[-1]["content"] or answer == row["capital"].lower())', "reward"),
        (RETURN, "return 1.5", "the golden answer gets 0: no reward: 1.5"),
        (RETURN, "raise ValueError('oh')", "the golden answer gets 0: raised: ValueError: oh"),
        ("return [{", "return [][:1] or [{", None),
    ],
)
def test_what_is_wrong_is_told_with_its_row_and_remedy(old: str, new: str, says: str | None) -> None:
    assert old in SINGLE
    found = findings(SINGLE.replace(old, new))
    assert (not found) if says is None else any(says in one.what and one.remedy for one in found)


def test_a_reward_that_differs_between_processes_is_found() -> None:
    leaky = SINGLE.replace(RETURN, 'return float(answer == row["capital"].lower()) * (hash("x") % 2)')
    codes = itertools.cycle("1234")

    def seeded(*arguments: Any) -> OpenSandbox:
        with _hash_seed(next(codes)):
            return OpenSandbox(*arguments)

    ways = [PlayWay(f"seed {number}", "seeds", seeded) for number in range(4)]
    found = checked(leaky, ways, most=1).findings
    assert any("the reward of the golden answer differs: seed" in one.what for one in found)


def test_rows_and_turns_that_differ_are_found_and_pairs_are_not_mixed() -> None:
    place = "import sys\n"
    moved = place + SINGLE.replace("return [{", "return [{'at': sys.path[0]} | {")
    assert any("make another row" in one.what for one in checked(moved, most=1).findings)
    apart = [PlayWay("here", "one", OpenSandbox), PlayWay("there", "other", OpenSandbox)]
    assert checked(moved, apart, most=1).good
    turns = template("multi-turn", "mine").replace('return "That', 'return sys.path[0] + "That')
    found = checked(place + turns, most=1).findings
    assert any("what was said of" in one.what and "differs" in one.what for one in found)


def test_a_scorer_that_raises_on_garbage_is_counted_and_no_mistake() -> None:
    strict = SINGLE.replace("answer = re", "turns[-1]['content'].encode('ascii')\n    answer = re")
    report = checked(strict, WAYS[:1], most=1)
    assert report.good and report.faults == 1


def test_what_could_not_be_finished_is_not_called_good() -> None:
    def slow(*arguments: Any) -> OpenSandbox:
        sandbox = OpenSandbox(*arguments)
        sandbox.fail_with["score"] = Undecided("no", "slow", "wait")
        return sandbox

    report = checked(SINGLE, [PlayWay("slow", "one", slow)], most=1)
    assert not report.findings and report.undecided and not report.good


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("def rows", "def row", "no rows"),
        ("import re", "import requests", "requests"),
        ("return f", "return 5 #", "row 0"),
    ],
)
def test_a_package_that_does_not_load_is_an_error(old: str, new: str, says: str) -> None:
    with pytest.raises(PackageError, match=says):
        checked(SINGLE.replace(old, new), WAYS[:1])


@pytest.mark.parametrize("source", ["rows", "file"])
def test_a_package_that_makes_its_guest_tell_no_rows_is_refused_and_not_asked_for_ever(source: str) -> None:
    trick = "\n\nimport builtins\nbuiltins.enumerate = lambda *given: iter(())\n"
    if source == "rows":
        files = {"environment.py": (SINGLE + trick).encode()}
    else:
        code = SINGLE.replace("def rows", "def unused") + trick
        files = {"environment.py": code.encode(), "rows.jsonl": b'{"country": "France", "capital": "Paris"}\n' * 3}
    with pytest.raises(PackageError, match="it told 0 (rows|prompts)"):
        check_package(files, WAYS[:1], 1)


@pytest.mark.parametrize("told", ["texts.append('')", "texts.pop()"])
def test_a_package_that_changes_how_many_rewards_its_guest_tells_is_asked_one_by_one(told: str) -> None:
    trick = f"""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "sweep":
            for _, texts in frame.f_locals["asked"]:
                if len(texts) == 3:
                    {told}
        frame = frame.f_back
"""
    few = SINGLE.replace("CAPITALS.items()]", "[*CAPITALS.items()][:6]]")
    changed = "import sys\n" + few.replace("def score(row, turns):\n", f"def score(row, turns):{trick}")
    assert trick in changed
    report, honest = checked(changed, WAYS[:1], most=1), checked(few, WAYS[:1], most=1)
    assert report.good and report.swept == honest.swept


def test_a_judged_package_needs_no_score_and_decides_nothing() -> None:
    judged = SINGLE.replace('class = "exact"', 'class = "judged"')
    assert checked(judged.replace("def score", "def unused"), most=2).good
    with pytest.raises(PackageError, match="no function score"):
        checked(SINGLE.replace("def score", "def unused"))


def test_one_row_is_not_enough_for_a_run() -> None:
    single = SINGLE.replace(
        "for country, capital in CAPITALS.items()]", "for country, capital in [*CAPITALS.items()][:1]]"
    )
    assert "there are 1 rows" in findings(single)[0].what


def seeded(number: str) -> Any:
    def opened(*arguments: Any) -> OpenSandbox:
        with _hash_seed(number):
            return OpenSandbox(*arguments)

    return opened


APART = [PlayWay(f"hash seed {number}", "seeds", seeded(number)) for number in "1234"]


@pytest.mark.parametrize("name", DISHONEST)
def test_a_package_that_is_not_what_it_says_is_found(name: str) -> None:
    ways = APART if "order" in name else APART[:1]
    most = check.LEAST_FOREIGN if "form" in name else 2
    report = check_package({"environment.py": DISHONEST[name]}, ways, most, seed=b"a seed")
    assert report.findings and all(one.remedy for one in report.findings)


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_package_is_not_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where few rows are enough to say that it pays for any row's answer."""
    monkeypatch.setattr(check, "LEAST_FOREIGN", 3)
    report = check_package({"environment.py": HONEST[name]}, APART[:1], 3, seed=b"a seed")
    assert report.good, report.findings
    assert report.swept == (0 if name == "judged" else report.rows)
    assert [one.what for one in report.warnings] == (
        ["the golden answer stands in the prompt, in 3 of 3 rows"] if "copied" in name else []
    ) or name == "a choice"  # "yes or no" stands in the prompt, too


def test_who_wrote_a_package_cannot_know_which_rows_and_which_garbage_are_drawn() -> None:
    items: Any = [type("Item", (), {"number": number}) for number in range(1000)]

    def rows(seed: bytes) -> list[int]:
        return [item.number for item in drawn(items, 20, seed)]

    assert rows(b"a") == rows(b"a") != rows(b"b") and len(set(rows(b"a"))) == 20 and rows(b"a") == sorted(rows(b"a"))
    assert garbage(b"a", 1) == garbage(b"a", 1) != garbage(b"a", 2) and garbage(b"a", 1) != garbage(b"b", 1)
    assert len(drawn(items, 5000, b"a")) == 1000


def test_costs_are_told_with_their_tails() -> None:
    told = spread({row: float(row % 100) for row in range(200)})
    assert (told.median, told.p95, told.most, told.row) == (50.0, 95.0, 99.0, 99) and spread({}).row == -1
