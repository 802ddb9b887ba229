"""A standby that cannot follow a step: whose fault it is, and what it says of it."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from node.services.training.standing_by import StandingBy
from protocol.errors import OwnFailure, ProtocolError

OWN, THEIRS = OwnFailure("no room", "the disk is full", "make room"), ProtocolError("unusable manifest", "its parent")


@pytest.mark.parametrize(
    ("errors", "objects"),
    [([THEIRS] * 5, True), ([OWN] * 5 + [THEIRS], False), ([THEIRS] * 4 + [OWN, THEIRS], True), ([OWN] * 9, False)],
)
async def test_what_was_signed_is_objected_to_after_five_tries_that_failed_by_it_and_by_nothing_of_our_own(
    errors: list[Any], objects: bool, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed, said, failing = SimpleNamespace(message="the statement", author="leader"), list[Any](), iter(errors)
    state = SimpleNamespace(policies=SimpleNamespace(of_step=lambda step: signed))
    context: Any = SimpleNamespace(state=state, progress=SimpleNamespace(trouble=lambda text: None))
    none: Any = None
    standby = StandingBy(context, none, none, none, none)

    async def manifest(signed: Any) -> Any:
        await trio.lowlevel.checkpoint()
        raise next(failing)

    async def object_to(message: Any) -> None:
        await trio.lowlevel.checkpoint()
        said.append(message)

    monkeypatch.setattr(standby, "_manifest", manifest)
    monkeypatch.setattr(standby, "_object_to", object_to)
    for _ in errors:
        assert await standby._replay(3)
    assert said == [signed.message] * objects
    assert standby.is_stuck
