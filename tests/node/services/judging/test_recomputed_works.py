"""Works that take a validator minutes to compute again: its own troubles, and being asked about them meanwhile."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from node.services.judging import recomputing
from tests.node.services.tasking.test_reviews import clock, looked, offer, report  # noqa: F401 - fixtures
from tests.node.services.tasking.town import Town, opened

pytestmark = pytest.mark.usefixtures("clock", "looked")


async def test_a_validator_that_is_asked_for_a_work_while_it_computes_it_says_one_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    town = Town(tmp_path)
    soon, slow = recomputing.prepared, town.run.audit.verdict_seconds

    async def prepared(*order: Any) -> Callable[[], Awaitable[bytes]]:
        work = await soon(*order)

        async def later() -> bytes:
            await trio.sleep(slow)
            return await work()

        return later

    monkeypatch.setattr(recomputing, "prepared", prepared)
    async with opened(town) as nursery:
        town.start(nursery)
        id = await offer(town)
        await town.finish(id)
        assert all(len(one.verdicts) == 2 for one, _, _ in town.folder(id).results())
