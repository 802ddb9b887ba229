"""A command is carried out once: what an equal one did before it was interrupted is told, and not done again.

Each transaction is in the outbox before it is sent, and stays there until its command has told what became of it. The
file here, one per key and chain, says which command that was, and which of its calls it came to: what a command
plans may depend on what it brought about, so a second one cannot always plan the same again.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from node.state.files import write_whole
from node.state.kept import cached

if TYPE_CHECKING:
    from cli.contract.frame import CommandPlan
    from node.chain.connection import Receipt
    from node.chain.sender import Recovered


class _Record(msgspec.Struct, frozen=True):
    """command: its name and its arguments; done: its words for people; steps: how many it has; sent: intents of those
    that it came to, in their order."""

    command: str
    done: str
    steps: int
    sent: tuple[str, ...] = ()


class Begun:
    """What stands of a command that may have been interrupted. given: its own arguments; place: what it acts on."""

    def __init__(self, path: Path, command: str, given: Mapping[str, Any], place: str) -> None:
        self._path = path
        self._command = f"{command} {sorted((name, repr(value)) for name, value in given.items())} {place}"
        data = path.read_bytes() if path.is_file() else b""
        # What cannot be read is as what was never written: the outbox knows what was sent.
        record = cached(str(path), lambda: msgspec.json.decode(data, type=_Record)) if data else None
        self._record = record if record is not None and record.command == self._command else None

    def finished(self, left: "Sequence[Recovered]") -> "tuple[str, list[Receipt]] | None":
        """Words and receipts of an equal command that did all it had to do, and could not tell so."""
        record = self._record
        if record is None or len(record.sent) < record.steps:
            return None
        taken = _Mined(left)
        receipts = [receipt for intent in record.sent if (receipt := taken.take(intent)) is not None]
        return (record.done, receipts) if len(receipts) == record.steps else None

    def start(self, plan: "CommandPlan") -> None:
        """Before its first step."""
        self._record = _Record(self._command, plan.done, len(plan.steps))

    def comes_to(self, intent: str) -> None:
        """Before a step is sent, or found done."""
        assert self._record is not None
        self._record = msgspec.structs.replace(self._record, sent=(*self._record.sent, intent))
        write_whole(self._path, msgspec.json.encode(self._record))

    def end(self) -> None:
        """It was told."""
        self._path.unlink(missing_ok=True)


class _Mined:
    """Receipts of what was done, by intent: which is the call without its number and fees."""

    def __init__(self, left: "Sequence[Recovered]") -> None:
        from node.chain.outbox import Fate

        self._by: dict[str, list[Receipt]] = {}
        for one in left:
            if one.fate is Fate.MINED and one.receipt is not None:
                self._by.setdefault(one.pending.intent, []).append(one.receipt)

    def take(self, intent: str) -> "Receipt | None":
        """One stands for one step."""
        found = self._by.get(intent)
        return found.pop(0) if found else None


def already_done(plan: "CommandPlan", left: "Sequence[Recovered]") -> "dict[int, Receipt]":
    """Steps that an earlier, equal command did before it was interrupted, by their place in the plan."""
    mined = _Mined(left)
    done: dict[int, Receipt] = {}
    for number, planned in enumerate(plan.steps):
        # As it was sent: a step may hang on what an earlier one brought about, such as a pool's number.
        step = plan.refresh(planned, list(done.values()))
        if (receipt := mined.take(step.call.intent)) is not None:
            done[number] = receipt
    return done
