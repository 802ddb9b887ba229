"""Seconds from a leading trainer's silence to the next policy, and what the silence costs: killed, stopped, cut off.

    python -m benchmarks.takeover [--ways killed,stopped,cut] [--seeds 0,1,2] [--steps 20] [--quick] [--json FILE]

Each swarm is a demo's: two trainers, a worker, a validator, each its own process, on a local chain. Once the standby
has replayed all but one of the leader's first five steps the leader falls silent:

    killed   SIGKILL to its daemon and all of its children; started again once the standby leads
    stopped  SIGSTOP to all of them for 60 s, then SIGCONT
    cut      the kernel drops each packet to and from it for 60 s: peers, chain, everything (root, Linux; it starts in
             a control group of its own, to which a filter of two instructions is attached)

The former leader then follows: it replays what it missed, or takes a checkpoint over where that is far, which counts
for no replay. Split steps are those under which nodes named two policies: only what a term took back should be there.

Before it falls silent, what a step costs: bytes of gossip that came to the validator, of the kinds of message that
audits, standbys and the chair brought and of all others (240 bytes of each announcement are the statement's), and
seconds of the processors that daemon and children of leader and standby took since the first policy. With --calm the
leader never falls silent: that many steps are counted, and nothing else.
"""

import ctypes
import os
import platform
import signal
import struct
import sys
import tempfile
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import trio

from benchmarks.command import parser_of, save, silence_logs, tell
from benchmarks.watching import PATIENCE, Watcher
from cli.demo.cast import DemoOptions, Scene, cast
from cli.demo.chain import open_chain
from cli.demo.prepare import prepare
from cli.demo.story import demo_environment, program_of
from cli.demo.supervise import SupervisedProgram, Supervisor, open_zygote
from cli.demo.view import PlainView
from node.status_schema import DaemonStatus

SILENT_AT = 5
SILENT_SECONDS = 60.0
EVERY = 0.1
LEADER, STANDBY = "trainer", "standby"
CALM = "calm"


ADDED = ("AcceptedList", "StepObjected", "StepVerdict", "CheckpointOffered", "LeaderSilent")
"""Kinds of message that came with audits, standbys and the chair."""
STATEMENT = 240
"""Bytes of an announcement that are the statement's."""


class Swarm(Watcher):
    """The daemons of one demo, and what they say."""

    def __init__(self, scene: Scene, supervisor: Supervisor, programs: dict[str, SupervisedProgram]) -> None:
        super().__init__(scene, list(programs), EVERY)
        self.supervisor = supervisor
        self.programs = programs
        self.roots: dict[int, set[str]] = defaultdict(set)
        """Step of the newest policy -> the roots that nodes said."""

    def heard(self, status: DaemonStatus) -> None:
        if status.run is not None and status.run.policy_root:
            self.roots[status.run.step or 0].add(status.run.policy_root)

    async def must(self, done: Callable[[], bool]) -> None:
        if await self.until(done) is None:
            raise SystemExit("the swarm does not go on")

    def family(self, name: str) -> list[psutil.Process]:
        """The daemon's process group: its children lead none."""
        first = psutil.Process(self.seen[name].node.pid)
        top = next((one for one in first.parents() if os.getpgid(one.pid) == one.pid == os.getpgid(first.pid)), first)
        return [top, *top.children(recursive=True)]

    def cost(self) -> dict[str, Any]:
        """Totals until now."""
        counts = next((self.seen[name].board for name in self.seen if name.startswith("validator")), {})
        kinds = {name.removeprefix("bytes."): size for name, size in counts.items() if name.startswith("bytes.")}
        new = STATEMENT * counts.get("PolicyAnnounced", 0)
        new += sum(kinds.get(name, 0) + counts.get(f"carried_bytes.{name}", 0) for name in ADDED)
        return {
            "step": self.step(LEADER),
            "added": new,
            "others": sum(kinds.values()) - new,
            "kinds": kinds,
            "seconds": {name: sum(map(_seconds, self.family(name))) for name in (LEADER, STANDBY)},
        }


def _seconds(process: psutil.Process) -> float:
    """Of the processors, with those of children that have ended."""
    try:
        return sum(process.cpu_times()[:4])
    except psutil.NoSuchProcess:
        return 0.0


def per_step(first: dict[str, Any], last: dict[str, Any]) -> dict[str, Any]:
    """What lies between two totals, of one step."""
    steps = max(last["step"] - first["step"], 1)
    added, others = ((last[name] - first[name]) / steps for name in ("added", "others"))
    kinds = {name: round((size - first["kinds"].get(name, 0)) / steps) for name, size in last["kinds"].items()}
    seconds = {name: (last["seconds"][name] - first["seconds"][name]) / steps for name in last["seconds"]}
    return {
        "steps": steps,
        "gossip_added": round(added),
        "gossip_others": round(others),
        "gossip_ratio": round((added + others) / max(others, 1), 2),
        "kinds": dict(sorted(kinds.items(), key=lambda one: -one[1])),
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
        "standby_ratio": round(seconds[STANDBY] / max(seconds[LEADER], 1e-9), 2),
    }


async def fall_silent(swarm: Swarm, way: str, cut: "Cut | None", nursery: trio.Nursery) -> None:
    """Make the leader silent; what is to happen later goes on beside."""
    family = swarm.family(LEADER)

    async def later(seconds: float, act: Callable[[], object]) -> None:
        await trio.sleep(seconds)
        act()

    if way == "killed":
        swarm.supervisor.kill(LEADER)
    elif way == "stopped":
        for one in family:
            one.send_signal(signal.SIGSTOP)
        nursery.start_soon(later, SILENT_SECONDS, lambda: [one.send_signal(signal.SIGCONT) for one in family])
    elif cut is not None:
        cut.attach()
        nursery.start_soon(later, SILENT_SECONDS, cut.detach)


async def happen(swarm: Swarm, way: str, cut: "Cut | None", steps: int) -> dict[str, Any]:
    await swarm.must(lambda: swarm.step(LEADER) >= 1 and swarm.step(STANDBY) >= 1)
    begun = swarm.cost()
    if way == CALM:
        await swarm.must(lambda: swarm.step(LEADER) >= begun["step"] + steps)
        return {"way": way, "cost": per_step(begun, swarm.cost())}
    await swarm.must(lambda: swarm.step(LEADER) >= SILENT_AT and swarm.step(STANDBY) >= swarm.step(LEADER) - 1)
    silent_at, replayed = swarm.step(LEADER), swarm.step(STANDBY)
    tell(f"the leader is {way} at step {silent_at}; the standby has replayed {replayed}")
    began = trio.current_time()
    found: dict[str, Any] = {"way": way, "at_step": silent_at, "replayed_before": replayed}
    found["cost"] = per_step(begun, swarm.cost())
    async with trio.open_nursery() as nursery:
        await fall_silent(swarm, way, cut, nursery)

        def led() -> bool:
            chair = swarm.seen[STANDBY].chair
            return bool(chair and chair.leads and swarm.step(STANDBY) >= chair.from_step)

        await swarm.must(led)
        found["next_policy_after"] = round(trio.current_time() - began, 1)
        tell(f"policy {swarm.step(STANDBY)} came {found['next_policy_after']} s after")
        if way == "killed":
            await swarm.supervisor.start(swarm.programs[LEADER])
        await swarm.must(lambda: swarm.step(STANDBY) >= steps)
        # The former leader is the last standby now: it drops what it had alone, and replays the rest.
        await swarm.until(
            lambda: swarm.step(LEADER) >= steps and bool((chair := swarm.seen[LEADER].chair) and not chair.leads),
            PATIENCE / 2,
        )
    for name in (LEADER, STANDBY):
        chair = swarm.seen[name].chair
        found[name] = {"step": swarm.step(name)}
        if chair is not None:
            found[name] |= {"equal": chair.equal, "replayed": chair.replayed, "apart": chair.apart, "term": chair.term}
    work = swarm.seen["worker 1"].work
    if work is not None:
        found["files"] = {"accepted": work.files_accepted, "refused": work.files_rejected}
    found["split_steps"] = sorted(step for step, roots in swarm.roots.items() if len(roots) > 1)
    return found


async def play(way: str, seed: int, steps: int, work: Path) -> dict[str, Any]:
    options = DemoOptions(work / f"{way}-{seed}", workers=1, cheats=(), steps=100_000, seed=seed, trainers=2)
    scene = Scene(options.directory.resolve())
    scene.directory.mkdir(parents=True)
    scene.claim()
    environment, view = demo_environment(scene), PlainView(tell)
    with open_cut(way) as cut:
        async with open_zygote(environment) as spawn, open_chain(scene, environment, view) as chain:
            stage = await prepare(options, scene, chain, environment, spawn, view)
            supervisor = Supervisor(tell, spawn=_spawn_into(cut, spawn))
            programs = {one.name: program_of(one, scene, stage, environment, options) for one in cast(options)}
            swarm = Swarm(scene, supervisor, programs)
            try:
                async with trio.open_nursery() as nursery:
                    for program in programs.values():
                        await supervisor.start(program)
                    nursery.start_soon(swarm.watch)
                    nursery.start_soon(supervisor.watch)
                    found = await happen(swarm, way, cut, steps)
                    nursery.cancel_scope.cancel()
            finally:
                await supervisor.stop()
    return {"seed": seed, **found}


def _spawn_into(cut: "Cut | None", spawn: Any) -> Callable[[SupervisedProgram], Awaitable[Any]]:
    """The leader goes into the control group before it has a socket: one that is open already stays outside."""

    async def start(program: SupervisedProgram) -> Any:
        process = await spawn(program)
        if cut is not None and program.name == LEADER:
            cut.take_in(process.pid)
        return process

    return start


BPF_CALL = {"x86_64": 321, "aarch64": 280}
PROG_LOAD, PROG_ATTACH, PROG_DETACH = 5, 8, 9
CGROUP_SKB = 8
INGRESS, EGRESS = 0, 1
DROP_ALL = struct.pack("<BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0)
"""r0 = 0; exit: no packet passes."""


class Cut:
    """A control group whose processes are cut off from every network while the filter is attached (bpf(2))."""

    def __init__(self, group: Path) -> None:
        self._group = group
        self._code, self._license = ctypes.create_string_buffer(DROP_ALL), ctypes.create_string_buffer(b"GPL")
        load = struct.pack("<IIQQ", CGROUP_SKB, 2, ctypes.addressof(self._code), ctypes.addressof(self._license))
        self._filter = _bpf(PROG_LOAD, load)
        self._folder = os.open(group, os.O_RDONLY)

    def take_in(self, pid: int) -> None:
        (self._group / "cgroup.procs").write_text(f"{pid}\n")

    def attach(self) -> None:
        for direction in (INGRESS, EGRESS):
            _bpf(PROG_ATTACH, struct.pack("<IIII", self._folder, self._filter, direction, 0))

    def detach(self) -> None:
        for direction in (INGRESS, EGRESS):
            _bpf(PROG_DETACH, struct.pack("<IIII", self._folder, self._filter, direction, 0))


def _bpf(command: int, attributes: bytes) -> int:
    number = BPF_CALL.get(platform.machine())
    if number is None:
        raise OSError(f"no number of bpf(2) is known for {platform.machine()}")
    libc, given = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(attributes, 128)
    result = libc.syscall(number, command, given, 128)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"bpf({command}): {os.strerror(ctypes.get_errno())}")
    return result


@contextmanager
def open_cut(way: str) -> Iterator[Cut | None]:
    if way != "cut":
        yield None
        return
    mounted = next((one.mountpoint for one in psutil.disk_partitions(all=True) if one.fstype == "cgroup2"), None)
    if mounted is None:
        sys.exit("to cut a node off takes control groups of the second kind (cgroup2), which are not mounted here")
    group = Path(mounted) / f"takeover-{os.getpid()}"
    group.mkdir()
    try:
        yield Cut(group)
    finally:
        group.rmdir()  # its processes have ended: the supervisor waited for them


def main() -> None:
    parser = parser_of(__doc__, "one seed, killed")
    parser.add_argument("--ways", default="killed,stopped,cut")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=20, help="after which a swarm ends")
    parser.add_argument("--calm", action="store_true", help="nobody falls silent: only what a step costs")
    given = parser.parse_args()
    silence_logs()
    ways, seeds = (("killed",), (0,)) if given.quick else (given.ways.split(","), map(int, given.seeds.split(",")))
    ways = (CALM,) if given.calm else ways
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for way, seed in [(way, seed) for seed in seeds for way in ways]:
            rows.append(trio.run(play, way, seed, given.steps, Path(folder)))
            save(given.json, rows)
    for row in rows:
        print(f"seed {row['seed']}, {row['way']}: of a step {row['cost']}")
    if given.calm:
        return
    print(f"{'way':8} seed  next policy  standby equal  the former is at  equal      files refused  split steps")
    for row in rows:
        equal = [f"{row[name].get('equal')} of {row[name].get('replayed')}" for name in (STANDBY, LEADER)]
        refused = row.get("files", {}).get("refused")
        former = f"step {row[LEADER]['step']}"
        cells = f"{row['next_policy_after']:9.1f} s  {equal[0]:>13}  {former:>16}  {equal[1]:9}  {refused!s:>13}"
        print(f"{row['way']:8} {row['seed']:4}  {cells}  {row['split_steps'] or 'none'}")


if __name__ == "__main__":
    main()
