"""Who contributed what: each file once, also where a decision comes late or changes."""

from types import SimpleNamespace
from typing import Any

from node.status_schema import ContributionPart
from node.swarm.contributions import Contributions
from node.swarm.vote_set import FileState
from protocol.checks import Reason

A, B = "0x" + "a" * 40, "0x" + "b" * 40


class Court:
    """Register and votes whose answers a test sets."""

    def __init__(self) -> None:
        self.works: dict[bytes, Any] = {}
        self.states: dict[bytes, FileState] = {}

    def committed(self, id: bytes, node: str, units: int = 10) -> None:
        self.works[id] = SimpleNamespace(id=id, node=node, step=3, commitment=SimpleNamespace(units=units, index=1))
        self.states[id] = FileState.OPEN

    def get(self, id: bytes) -> Any:
        return self.works.get(id)

    def state(self, id: bytes) -> FileState:
        return self.states[id]

    def rejecting(self, id: bytes) -> dict[str, Any]:
        said = [(Reason.SAMPLING, "reward of group 2"), (Reason.STALE, ""), (Reason.SAMPLING, "group 2")]
        return {
            str(i): SimpleNamespace(verdict=SimpleNamespace(reason=int(reason)), detail=detail)
            for i, (reason, detail) in enumerate(said)
        }


def counted(*works: tuple[bytes, str]) -> tuple[Court, Contributions]:
    court: Any = Court()
    for id, node in works:
        court.committed(id, node)
    return court, Contributions(court, court, lambda: 1.79e9)


def test_a_file_counts_once_however_often_it_is_spoken_of() -> None:
    court, counts = counted((b"1", A), (b"2", A), (b"3", B))
    for id, state in ((b"1", FileState.ACCEPTED), (b"2", FileState.ACCEPTED), (b"3", FileState.REJECTED)):
        counts.look(id)
        court.states[id] = state
        counts.look(id)
        counts.look(id)
    told = counts.status()
    assert (told.accepted, told.rejected) == (2, 1)
    assert told.members[A] == ContributionPart(accepted=2, units=20)
    assert told.members[B].reason == "sampling" == told.recent[-1].reason
    assert told.recent[-1].detail == "reward of group 2" and told.by_reason == {"sampling": 1}


def test_a_decision_that_changes_is_counted_anew() -> None:
    court, counts = counted((b"1", A))
    for state in (FileState.ACCEPTED, FileState.DISPUTED, FileState.REJECTED):
        court.states[b"1"] = state
        counts.look(b"1")
    told = counts.status().members[A]
    assert (told.accepted, told.rejected, told.units) == (0, 1, 0)


def test_what_the_clock_decides_is_counted_without_another_word() -> None:
    court, counts = counted((b"1", A))
    counts.look(b"1")
    court.states[b"1"] = FileState.ACCEPTED
    counts.look_again()
    counts.look_again()
    assert counts.status().accepted == 1


def test_what_the_register_has_forgotten_is_no_error() -> None:
    court, counts = counted((b"1", A))
    counts.look(b"1")
    del court.works[b"1"]
    counts.look_again()
    counts.look(b"unheard of")
    assert counts.status().members == {}
