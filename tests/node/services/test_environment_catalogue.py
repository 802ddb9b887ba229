"""What one node publishes another finds, fetches and compares; what nobody has, or is another thing, is told."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from node.environments.package.archive import pack, root_of
from node.services.environment_catalogue import EnvironmentCatalogue, NotOffered
from protocol.messages import EnvironmentPublished
from tests.attacks.validators.court import POOL
from tests.node.services.tasking.town import Town, ToyEngine, at_once, opened

REPEAT_EVERY = 60.0

CODE = b"""# /// environment
# name = "maze"
# class = "exact"
# about = "find the way"
# ///
def rows(): return [{"a": 1}]
def prompt(row): return "?"
def score(row, turns): return 0.0
"""
ARCHIVE = pack({"environment.py": CODE})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
    return MockClock(autojump_threshold=0)


def offer(**changes: object) -> EnvironmentPublished:
    fields = {"name": "maze", "root": root_of(ARCHIVE), "size": len(ARCHIVE), "determinism": "exact", "turns": 1}
    about = {"about": "", "sequence": int(trio.current_time() * 1000)}
    found = {**fields, **about, **changes}
    root = found["root"]
    return EnvironmentPublished(pool=POOL, **{**found, "root": bytes.fromhex(root) if isinstance(root, str) else root})  # type: ignore[arg-type]


async def test_what_is_published_is_found_elsewhere_and_again_after_a_restart(clock: MockClock, tmp_path: Path) -> None:
    town = Town(tmp_path, [ToyEngine()])
    file = tmp_path / "maze.tar"
    file.write_bytes(ARCHIVE)
    async with opened(town) as nursery:
        author = EnvironmentCatalogue(town.workers[0].context, tmp_path / "published.json")
        reader = EnvironmentCatalogue(town.seats[0].context, tmp_path / "none.json")
        nursery.start_soon(reader.run)
        await author.publish(file)
        await town.until(reader.entries)
        entry = reader.find("maze")
        assert (entry.about, entry.publishers) == ("find the way", (town.workers[0].key.address,))
        path, differs = await reader.fetched(entry)
        assert path.read_bytes() == ARCHIVE and differs == []
        assert reader.find(f"maze@{entry.root}") == reader.find(entry.root[:9]) == entry
        await trio.sleep(2 * 240)
        assert reader.entries() == []  # nobody has said it again
        nursery.start_soon(EnvironmentCatalogue(town.workers[0].context, tmp_path / "published.json").run)
        await trio.sleep(REPEAT_EVERY)
        assert reader.find("maze").root == entry.root


async def test_a_package_that_nobody_has_or_that_is_another_is_told(clock: MockClock, tmp_path: Path) -> None:
    town = Town(tmp_path)
    async with opened(town):
        reader = EnvironmentCatalogue(town.seats[0].context, tmp_path / "none.json")
        await town.workers[0].board.post(offer(name="ghost", root="ab" * 32))
        await town.blobs.add(ARCHIVE)
        await town.workers[1].board.post(offer(name="lies", determinism="judged"))
        await town.until(lambda: len(reader.entries()) == 2)
        with pytest.raises(NotOffered, match="nobody hands ghost over"):
            await reader.fetched(reader.find("ghost"))
        _, differs = await reader.fetched(reader.find("lies"))
        assert differs == ["name: offered lies, is maze", "determinism: offered judged, is exact"]
        with pytest.raises(NotOffered, match="names 0 packages"):
            reader.find("maze")
        await town.workers[2].board.post(offer(name="lies", root="cd" * 32))
        await town.until(lambda: len(reader.entries()) == 3)
        with pytest.raises(NotOffered, match="names 2 packages"):
            reader.find("lies")
