"""How a demo is cut short and gone on with; the processes are left out."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from cli.demo import story
from cli.demo.cast import DemoOptions, Scene, remembered
from cli.demo.prepare import DemoStage
from cli.demo.snapshot import DemoMember, ProcessState, Snapshot, SwarmRow, Tracker
from cli.demo.supervise import start_anew
from cli.demo.view import DemoView
from cli.errors import CommandError
from cli.main import main
from contracts.bindings import Addresses
from node.chain.profile import NetworkProfile, write_profile
from node.state.files import write_whole
from protocol.identity import Address

LAST = Snapshot(rewards=((0, 0.25), (1, 0.5)))


class Said(DemoView):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def __enter__(self) -> "Said":
        return self

    def __exit__(self, *problem: object) -> None:
        return None

    def say(self, text: str) -> None:
        self.lines.append(text)

    def show(self, snapshot: Snapshot) -> None:
        """Nobody looks."""


async def cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: Snapshot, report: Any) -> Said:
    """Cancel a demo without processes in the middle of its training."""
    monkeypatch.setattr(story, "cast", lambda options: ())
    monkeypatch.setattr(story, "_watch_training", lambda *_: trio.sleep_forever())  # noqa: ASYNC105 - handed on
    monkeypatch.setattr(Tracker, "snapshot", lambda *_: last)
    options, stage, view = DemoOptions(tmp_path), DemoStage(tmp_path / "net.toml", 1, "sort", None), Said()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(story._perform, options, Scene(tmp_path), stage, {}, start_anew, view, 0.0, report)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return view


@pytest.mark.parametrize(("paid", "owed", "waits"), [(5, 9, False), (0, 9, True), (0, 0, True)])
async def test_a_demo_whose_run_is_over_waits_for_the_first_pay_and_not_for_ever(
    autojump_clock: Any, paid: int, owed: int, waits: bool
) -> None:
    rows = (SwarmRow(DemoMember("worker 1", "worker"), ProcessState(), "finished", paid_wei=paid, owed_wei=owed),)
    view, started = Said(), trio.current_time()
    await story._watch_training(lambda phase: Snapshot(rows=rows, done=True), view)
    assert (trio.current_time() - started > 55.0) is waits
    assert any("waiting for the first pay" in line for line in view.lines) is waits


async def test_an_interrupted_demo_leaves_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[Snapshot] = []

    async def report(last: Snapshot) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()  # the interrupt must not cut it short
        reported.append(last)
        return {"report": "demo/report"}

    view = await cut_short(tmp_path, monkeypatch, LAST, report)
    assert reported == [LAST] and view.lines[-1] == "what was done so far: demo/report"
    await cut_short(tmp_path, monkeypatch, Snapshot(), report)
    assert reported == [LAST], "there is nothing to tell yet"


async def test_a_report_that_cannot_be_written_does_not_hide_why_the_demo_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def report(last: Snapshot) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        raise OSError("no space")

    view = await cut_short(tmp_path, monkeypatch, LAST, report)
    assert "no report of what was done so far: no space" in view.lines


@pytest.mark.parametrize(
    ("begun", "words"), [(True, "--resume goes on from here"), (False, "nothing to go on with yet")]
)
async def test_an_interrupted_demo_says_whether_it_can_be_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool, words: str
) -> None:
    scene, view = Scene(tmp_path), Said()
    if begun:
        scene.run_file.touch()
        scene.pool_file.touch()

    async def interrupted(*_: object) -> None:
        await trio.lowlevel.checkpoint()
        raise KeyboardInterrupt

    monkeypatch.setattr(story, "until_signalled", interrupted)
    with pytest.raises(KeyboardInterrupt):
        await story._until_signalled(interrupted, view, scene)
    assert words in view.lines[-1]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[DemoOptions]:
    """What the command line asks of the demo, which does not take place."""
    pytest.importorskip("torch")
    heard: list[DemoOptions] = []

    async def run_demo(options: DemoOptions, view: DemoView) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        heard.append(options)
        raise CommandError("enough", "only the options were wanted", "nothing")

    monkeypatch.setattr(story, "run_demo", run_demo)
    return heard


def test_a_demo_is_gone_on_with_by_those_who_began_it(tmp_path: Path, asked: list[DemoOptions]) -> None:
    place = ["--dir", str(tmp_path)]
    main(["demo", *place, "--no-cheat", "--workers", "3", "--validators", "3", "--seed", "7"])
    scene = Scene(tmp_path)
    write_whole(scene.cast_file, msgspec.json.encode(asked[0].casting))
    main(["demo", *place, "--resume"])
    first, resumed = asked
    assert (resumed.workers, resumed.validators, resumed.cheats, resumed.seed) == (3, 3, (), 7)
    assert resumed.casting == first.casting == remembered(scene)

    main(["demo", *place, "--resume", "--cheat", "int8", "--workers", "1"])
    assert (asked[2].workers, asked[2].cheats) == (1, ("int8",)), "what is said again wins"
    main(["demo", *place])
    assert (asked[3].workers, asked[3].cheats) == (2, ("own-problems",)), "a fresh demo forgets"


def test_a_demo_plays_on_a_local_chain_that_is_named_and_on_no_other(
    tmp_path: Path, asked: list[DemoOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    there = Addresses(*(Address(f"0x{digit:040x}") for digit in range(1, 7)))
    local, public = tmp_path / "local.toml", tmp_path / "public.toml"
    write_profile(
        local, NetworkProfile(name="mine", chain_id=31337, rpc_urls=("http://127.0.0.1:8545",), contracts=there)
    )
    write_profile(
        public, NetworkProfile(name="shared", chain_id=31337, rpc_urls=("https://rpc.example",), contracts=there)
    )
    place = ["--dir", str(tmp_path / "demo"), "--no-page", "--no-view"]
    assert main(["demo", *place, "--network", str(public)]) == 2
    assert "the demo does not play on shared" in capsys.readouterr().err and not asked
    main(["demo", *place, "--network", str(local)])
    assert asked[-1].network == local and asked[-1].casting.network == str(local)
