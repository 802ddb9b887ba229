"""The demo from its first line to its summary: chain, model, pool, processes, training, report.

Everything that is started is stopped, whichever way the story ends: processes first, then the chain.
"""

from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import msgspec
import trio

from cli.api import get_status_async, socket_of
from cli.demo.cast import LATECOMER, DemoOptions, Scene, cast, join_command, quorum_of, standbys
from cli.demo.chain import DemoChain, open_chain
from cli.demo.prepare import DemoStage, prepare
from cli.demo.report import write_report
from cli.demo.snapshot import DemoMember, Snapshot, SwarmRow, Tracker
from cli.demo.supervise import Spawn, SupervisedProgram, Supervisor, child_environment, open_zygote
from cli.demo.view import DemoView
from cli.errors import RUN, CommandError
from cli.events import event_rows
from cli.invocation import until_signalled
from cli.keypress import any_key
from cli.places import directory_lock
from node.environments.server.dial import LOCAL_SERVERS, PROGRAM
from node.state.directory import check_space, existing
from node.status_schema import DaemonStatus, PretrainingPart
from protocol.checks import OBJECTIVE
from protocol.errors import IntellectError

ROOT = Path(__file__).resolve().parents[2]
CHURN_POLL = 0.1


async def run_demo(options: DemoOptions, view: DemoView) -> dict[str, Any]:
    """The whole demo; returns its summary. Raises IntellectError, or KeyboardInterrupt after a clean stop."""
    result: list[dict[str, Any]] = []

    async def story() -> None:
        result.append(await _story(options, view))

    await _until_signalled(story, view, Scene(options.directory.resolve()))
    return result[0]


async def _story(options: DemoOptions, view: DemoView) -> dict[str, Any]:
    scene = Scene(options.directory.resolve())
    began = trio.current_time()
    # Before anything is written: a refusal leaves no directory.
    _check_resume(options, scene)
    # Each daemon would refuse to start, after a chain and a model had been made for it.
    check_space(existing(scene.directory), "--dir")
    # Two demos in one directory would share a chain and overwrite each other's keys.
    with directory_lock(scene.directory):
        scene.claim()
        if not options.resume:
            # After the claim, which refuses a directory of somebody else's.
            await trio.to_thread.run_sync(scene.clear)
        environment = demo_environment(scene)
        # In this order: the imports of the programs run while the chain comes up.
        async with open_zygote(environment) as spawn, open_chain(scene, environment, view, options.network) as chain:
            stage = await prepare(options, scene, chain, environment, spawn, view)

            async def report(last: Snapshot) -> dict[str, Any]:
                return await _report(options, scene, chain, last)

            last = await _perform(options, scene, stage, environment, spawn, view, began, report)
            return await report(last)


async def _perform(
    options: DemoOptions,
    scene: Scene,
    stage: DemoStage,
    environment: dict[str, str],
    spawn: Spawn,
    view: DemoView,
    began: float,
    report: Callable[[Snapshot], Awaitable[dict[str, Any]]],
) -> Snapshot:
    """Start the processes, watch them until the run is done, stop them; returns the last moment. A demo that ends in
    another way leaves its report here."""
    participants = cast(options)
    latecomer = next((one for one in participants if one.name == LATECOMER), None)
    quorum = quorum_of(options.validators)
    tracker = Tracker(participants, target=stage.target, run_name=stage.run_name, quorum=quorum, page=options.page)
    supervisor = Supervisor(view.say, spawn=spawn)

    def now(phase: str) -> Snapshot:
        return tracker.snapshot(phase, trio.current_time() - began, supervisor.states())

    async def starting(one: DemoMember) -> None:
        await supervisor.start(program_of(one, scene, stage, environment, options))

    try:
        for one in participants:
            if one != latecomer:
                await starting(one)
        view.say(f"{len(participants) - bool(latecomer)} nodes started, each its own process")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.watch)
            around = scene, supervisor, starting, view
            if latecomer:
                nursery.start_soon(_lose_peer, participants[1], participants[0], latecomer, *around)
            trainers = [one for one in participants if one.role == "trainer"]
            if trainers and trainers[0].cheat:
                nursery.start_soon(_find_out, trainers, scene, view)
            elif options.kills and len(trainers) > 1 and options.replicas:
                nursery.start_soon(_lose_peer, trainers[-1], trainers[0], trainers[-1], *around)
            elif options.kills and len(trainers) > 1 and not options.leader:
                nursery.start_soon(_take_over, trainers, *around)
            if options.page:
                nursery.start_soon(_tell_of_page, options.page, view)
            for one in participants:
                nursery.start_soon(_listen, one, scene, tracker, view.asks)
            await _watch_training(now, view)
            last = now("done")
            view.show(last)
            if options.lingers and options.page:
                view.say(f"the run is over; http://{options.page}/ stays until a key is pressed")
                await any_key()
            nursery.cancel_scope.cancel()
    except BaseException:
        last = now("interrupted")
        # Before the report, which copies from the trainer's spool.
        await supervisor.stop()
        await leave_report(report, last, view)
        raise
    finally:
        await supervisor.stop()
    return last


async def _lose_peer(
    victim: DemoMember,
    witness: DemoMember,
    successor: DemoMember,
    scene: Scene,
    supervisor: Supervisor,
    starting: Callable[[DemoMember], Awaitable[None]],
    view: DemoView,
) -> None:
    """Kill a peer while it trains a round, not the first, and start its successor when the others are two rounds on:
    a latecomer, which takes their state instead of making it, or the trainer itself again."""
    back = successor == victim
    first = 2 if back else 1
    killed = await _round_of(victim, scene, lambda part: part.training and part.round >= first)
    supervisor.kill(victim.name)
    missing = "; its contribution is missing there" if back else ""
    view.say(f"{victim.name} is killed while it trains round {killed + 1}{missing}")
    here = await _round_of(witness, scene, lambda part: part.round >= killed + 2)
    await starting(successor)
    view.say(f"{successor.name} {'comes back' if back else 'joins'} in round {here + 1}")


async def _round_of(one: DemoMember, scene: Scene, true: Callable[[PretrainingPart], bool]) -> int:
    """The round in which a node is once something is true of it."""
    while True:
        status = await _status_of(one, scene)
        if status and status.pretraining and true(status.pretraining):
            return status.pretraining.round
        await trio.sleep(CHURN_POLL)


async def _take_over(
    trainers: Sequence[DemoMember],
    scene: Scene,
    supervisor: Supervisor,
    starting: Callable[[DemoMember], Awaitable[None]],
    view: DemoView,
) -> None:
    """Kill the leader once the standbys replay it, tell when the next policy comes, and start the former one again."""
    leader, standby = trainers[0], trainers[1]
    # The standby must have replayed to the last step but one: killed sooner, the demo would show how it catches up.
    while (step := await _step_of(leader, scene)) < 5 or await _step_of(standby, scene) < step - 1:  # noqa: ASYNC110 - of other nodes
        await trio.sleep(CHURN_POLL)
    supervisor.kill(leader.name)
    died = trio.current_time()
    view.say(f"{leader.name} is killed at step {step}; {standby.name} has replayed {await _step_of(standby, scene)}")
    while True:
        status = await _status_of(standby, scene)
        if status and status.chair and status.chair.leads and status.training:
            if status.training.step >= status.chair.from_step:
                break
        await trio.sleep(CHURN_POLL)
    seconds = trio.current_time() - died
    equal = f"{status.chair.equal} of {status.chair.replayed} replayed steps equal"
    view.say(f"{standby.name} leads: policy {status.training.step} came {seconds:.1f} s after the death ({equal})")
    await starting(leader)
    view.say(f"{leader.name} comes back, as the last standby")


async def _find_out(trainers: Sequence[DemoMember], scene: Scene, view: DemoView) -> None:
    """Tell when somebody else leads than the trainer that cheats, and from which policy on."""
    for standby in cycle(trainers[1:]):
        status = await _status_of(standby, scene)
        if status and status.chair and status.chair.leads and status.chair.term:
            cheat, taken = trainers[0], f"{standby.name} does, from policy {status.chair.from_step} on"
            return view.say(f"{cheat.name} ({cheat.cheat}) leads no more: {taken}")
        await trio.sleep(CHURN_POLL)


async def _status_of(one: DemoMember, scene: Scene) -> DaemonStatus | None:
    return await get_status_async(socket_of(scene.state_dir(one.name)))


async def _step_of(one: DemoMember, scene: Scene) -> int:
    status = await _status_of(one, scene)
    return status.training.step if status and status.training else -1


async def leave_report(report: Callable[[Snapshot], Awaitable[dict[str, Any]]], last: Snapshot, view: DemoView) -> None:
    """The report of a demo that was cut short, if it came as far as a reward; a second signal does not cut it off."""
    if not last.rewards:
        return
    with trio.move_on_after(30.0, shield=True):  # that the report of an interrupted demo may take
        try:
            summary = await report(last)
        except (IntellectError, OSError) as error:
            view.say(f"no report of what was done so far: {error}")
        else:
            view.say(f"what was done so far: {summary['report']}")


def program_of(
    one: DemoMember, scene: Scene, stage: DemoStage, environment: dict[str, str], options: DemoOptions
) -> SupervisedProgram:
    """What runs as that participant."""
    leaderless = options.replicas or options.trainers == 1
    shows = "trainer" if leaderless else "standby" if options.trainers == 2 else "standby 1"  # who lives on
    page = options.page if one.name == shows else None
    command = join_command(one, scene, stage.profile, stage.pool, page, options.worker_engine)
    return SupervisedProgram(
        one.name, command, environment, scene.log(one.name), scene.directory, optional=bool(one.cheat)
    )


async def _tell_of_page(place: str, view: DemoView) -> None:
    """Once it answers: whoever clicks sooner would see an error."""
    host, _, port = place.rpartition(":")
    while True:
        try:
            async with await trio.open_tcp_stream(host, int(port)):
                return view.say(f"see it in a browser: http://{place}/")
        except OSError:
            await trio.sleep(view.asks)


async def _listen(one: DemoMember, scene: Scene, tracker: Tracker, every: float) -> None:
    """Ask one daemon for its status, over and over."""
    while True:
        status = await _status_of(one, scene)
        if status is not None:
            tracker.absorb(one.name, status)
        await trio.sleep(every)


async def _watch_training(now: Callable[[str], Snapshot], view: DemoView) -> None:
    """Show the state of things until the run is done, every cheat has met its fate, and the others were paid."""
    newest, moved, done_at, told = -1, trio.current_time(), None, False
    fate = 20.0  # seconds that a cheat's case may still take after the last step
    stall = 600.0  # seconds without a new step after which something must be wrong
    while True:
        snapshot = now("training" if newest >= 0 else "starting")
        view.show(snapshot)
        clock = trio.current_time()
        if snapshot.progress > newest:
            newest, moved = snapshot.progress, clock
        if snapshot.done:
            done_at = clock if done_at is None else done_at
            late = clock - done_at
            known = late > fate or all(_fate_is_sealed(row, snapshot) for row in snapshot.cheats)
            # seconds after it in which the first pay is waited for: an epoch, its window, a table, its delay, a claim
            if known and (snapshot.all_paid or late > 55.0):
                return
            if late > fate and not told:
                told = True
                view.say("the run is over; waiting for the first pay, which is claimed when an epoch's window is over")
        elif clock - moved > stall:
            raise CommandError(
                "training stands still",
                f"no new step for {stall:.0f} s; the last was {newest}",
                "look at nodes/*/logs in the demo's directory",
                RUN,
            )
        await trio.sleep(0.5)  # seconds between pictures


def _fate_is_sealed(row: SwarmRow, snapshot: Snapshot) -> bool:
    """Whether a liar is not believed any more, a cheat has lost its stake (or its pay, where its fault costs no more at
    once), a trainer its term."""
    if row.participant.role == "trainer":
        return not row.leads
    if row.participant.role == "validator":
        return snapshot.disbelief_in(row.participant) is not None
    # Only faults that anybody can prove from signed words take stake at once; the others go through files that
    # validators reject.
    costs_stake = {reason.name.lower() for reason in OBJECTIVE} & {name.lower() for name in row.reasons}
    return snapshot.slash_of(row.participant) is not None or bool(row.files_rejected and not costs_stake)


async def _report(options: DemoOptions, scene: Scene, chain: DemoChain, last: Snapshot) -> dict[str, Any]:
    events = await event_rows(chain.client)

    def write() -> dict[str, Any]:
        spools = [scene.state_dir(one.name) / "spool" for one in cast(options) if one.role == "trainer"]
        # Of several that lead the first is killed, or cheats; unless it is a standby that does.
        spool = spools[0 if options.replicas or options.leader in standbys() else min(1, len(spools) - 1)]
        summary = write_report(scene.report, last, spool=spool, events=events, seed=options.seed)
        (scene.report / "snapshot.json").write_bytes(msgspec.json.encode(last))
        return summary

    return await trio.to_thread.run_sync(write)


def demo_environment(scene: Scene) -> dict[str, str]:
    """What the children see: no setting of the user's own nodes, the demo's home, the repository importable. Which
    servers on this machine a run may reach is no setting of a node."""
    environment = child_environment(ROOT)
    own = {
        name: value
        for name, value in environment.items()
        if not name.startswith("INTELLECT_NODE_") or name == LOCAL_SERVERS or name.startswith(PROGRAM)
    }
    return own | {"INTELLECT_NODE_HOME": str(scene.home)}


def _check_resume(options: DemoOptions, scene: Scene) -> None:
    judges = [one.name for one in cast(options) if one.role == "validator"]
    strangers = [name for name in judges if not scene.state_dir(name).is_dir()]
    if options.resume and scene.can_resume and strangers:
        raise CommandError(
            "the demo to go on with has other validators",
            f"its pool does not name {strangers[0]}",
            "give --validators as it was when the demo began, or start a fresh one",
        )
    if options.resume and not scene.can_resume:
        raise CommandError(
            "there is no demo to go on with",
            f"{scene.directory} holds none that came as far as its pool",
            "start a fresh one, without --resume",
        )


async def _until_signalled(story: Callable[[], Awaitable[None]], view: DemoView, scene: Scene) -> None:
    """Run the story, and tell how a signal ends it."""
    try:
        await until_signalled(story, lambda: view.say("stopping: first the nodes, then the chain"))
    except KeyboardInterrupt:
        further = "--resume goes on from here" if scene.can_resume else "nothing to go on with yet"
        view.say(f"stopped; nothing is left running ({further})")
        raise
