"""Who takes part in a demo, and what each one is told. Pure."""

import ast
import difflib
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from cli.demo.snapshot import DemoMember
from cli.errors import RUN, USAGE, CommandError
from cli.places import clear
from protocol.errors import UNREADABLE

MARKER = ".intellect-node-demo"
OURS = ("home", "nodes", "model", "logs", "report", "run.toml", "pool", "cast.json", ".matplotlib")


@dataclass(frozen=True, slots=True)
class Scene:
    """Paths below the demo's directory."""

    directory: Path

    @property
    def home(self) -> Path:
        """What a user's own home directory of the program would be: the chain, its profile."""
        return self.directory / "home"

    @property
    def model(self) -> Path:
        return self.directory / "model"

    @property
    def run_file(self) -> Path:
        return self.directory / "run.toml"

    @property
    def pool_file(self) -> Path:
        """The number of the demo's pool."""
        return self.directory / "pool"

    @property
    def cast_file(self) -> Path:
        """Who took part, for a demo that goes on with them."""
        return self.directory / "cast.json"

    @property
    def report(self) -> Path:
        return self.directory / "report"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    def state_dir(self, name: str) -> Path:
        """The state directory of the participant `name`."""
        return self.directory / "nodes" / slug(name)

    def log(self, name: str) -> Path:
        """Where the participant `name` writes what is not in its own structured log."""
        return self.logs / f"{slug(name)}.log"

    def claim(self) -> None:
        """Make the directory the demo's; raises CommandError for one that holds somebody else's files."""
        self.directory.mkdir(parents=True, exist_ok=True)
        marker = self.directory / MARKER
        # The lock is the demo's own: it is held before the directory is claimed.
        strangers = [entry.name for entry in self.directory.iterdir() if entry.name not in (*OURS, MARKER, ".lock")]
        if not marker.exists() and strangers:
            raise CommandError(
                f"will not use {self.directory} for a demo",
                f"it holds other files: {', '.join(sorted(strangers)[:3])}",
                "name an empty or a new directory: --dir DIR",
            )
        marker.touch()

    def clear(self) -> None:
        """Remove what an earlier demo left; other files stay."""
        clear(self.directory, OURS)

    @property
    def can_resume(self) -> bool:
        return self.pool_file.exists() and self.run_file.exists()


def slug(name: str) -> str:
    """'worker 1' -> 'worker-1'"""
    return "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")


ROOT = Path(__file__).resolve().parents[2]
WORKERS = ROOT / "tests" / "cheats" / "catalogue.py"
VALIDATORS = ROOT / "tests" / "cheats" / "liars.py"
SEATS = ROOT / "tests" / "cheats" / "seats.py"
DAEMONS = ROOT / "tests" / "cheats" / "nodes.py"
TRAINERS = ROOT / "tests" / "cheats" / "trainers.py"
_MODULES = {"own-problems": "tests.cheats.own_problems", "other-weights": "tests.cheats.other_weights"}


def cheats() -> dict[str, str]:
    """Cheating workers: what is typed -> the name in the catalogue. Empty where there are no tests."""
    return _names(WORKERS, "CHEATS")


def liars() -> dict[str, str]:
    """Lying validators, likewise: in what their engines find, or in what they say and when."""
    return _names(VALIDATORS, "LIARS") | seats()


def seats() -> dict[str, str]:
    """Of these, the ones that are whole nodes."""
    return _names(SEATS, "SEATS")


def round_liars() -> dict[str, str]:
    """Lying validators of a run with rounds: in what a round comes to."""
    return _names(SEATS, "ROUNDS")


def nodes() -> dict[str, str]:
    """Members that are dishonest beside what their engines do, likewise."""
    return _names(DAEMONS, "NODES")


def leaders() -> dict[str, str]:
    """Trainers that cheat while they lead or when they led, likewise."""
    return _names(TRAINERS, "LEADERS")


def standbys() -> dict[str, str]:
    """Trainers that cheat while they stand by, likewise."""
    return _names(TRAINERS, "STANDBYS")


def chosen(words: Iterable[str], known: Mapping[str, str], what: str) -> tuple[str, ...]:
    """The typed names of what was asked for; raises CommandError that names the nearest one."""
    return tuple(_chosen(word, known, what) for word in words)


def program_module(cheat: str | None) -> list[str]:
    """What `python -m` runs as the whole node: everybody's daemon, or a dishonest one."""
    if cheat in (whole := seats() | round_liars()):
        return ["tests.cheats.seats", whole[cheat]]
    if cheat in (dishonest := leaders() | standbys()):
        return ["tests.cheats.trainers", dishonest[cheat]]
    return ["tests.cheats.nodes", nodes()[cheat]] if cheat in nodes() else ["cli"]


def engine_module(cheat: str) -> list[str]:
    """What `python -m` runs as the engine of a cheating worker or lying validator."""
    if cheat in _MODULES:
        return [_MODULES[cheat]]
    if cheat in liars():
        return ["tests.cheats.liars", liars()[cheat]]
    return ["tests.cheats.catalogue", cheats()[cheat]]


def _chosen(word: str, known: Mapping[str, str], what: str) -> str:
    if _word(word) in known:
        return _word(word)
    if not known:
        raise CommandError(
            f"there is no {what} here",
            f"a {what} is test code, which only a clone of the project has",
            "add --no-cheat" if what == "cheat" else f"leave --{what} out",
            RUN,
        )
    near = difflib.get_close_matches(_word(word), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    raise CommandError(
        f"there is no {what} {word!r}", f"known are: {', '.join(known)}", f"{hint}take one of them", USAGE
    )


def _names(path: Path, table: str) -> dict[str, str]:
    """The keys of a dictionary that a file of ours writes down."""
    if not path.exists():
        return {}
    # Parsed, not imported: the catalogue imports torch, and completion must answer at once.
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == table:
            assert isinstance(node.value, ast.Dict)  # as it is written there
            keys = [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
            return {_word(str(key)): str(key) for key in keys}
    return {}


def _word(name: str) -> str:
    """'int8, says bf16' -> 'int8-says-bf16'"""
    return re.sub("-+", "-", slug(name))


class Casting(msgspec.Struct, frozen=True):
    """Who takes part, and the seed, where the command line does not say; what a demo began with is kept for
    `--resume`. cheats, liars, leader: typed names; worker_engine: the engine command of honest workers; replicas: the
    trainers learn in rounds, and none of them leads; network: as in DemoOptions."""

    workers: int = 2
    validators: int = 1
    cheats: tuple[str, ...] = ("own-problems",)
    liars: tuple[str, ...] = ()
    seed: int = 0
    worker_engine: str | None = None
    trainers: int = 1
    replicas: bool = False
    leader: str | None = None
    network: str | None = None


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the user asked for. cheats: of workers, none for an honest swarm; liars: of the first validators; steps:
    None for the run file's own; page: HOST:PORT of the trainer's page, None for no page; worker_engine: another program
    that honest workers compute with; churn: kill a worker on the way, and let another join; trainers: the first is
    killed on the way where there are others, and comes back as the last of them; replicas: as in Casting; leader: how
    the first one cheats, or the first that stands by, who then lives; kills: whether a trainer may be killed; network:
    the profile of a local chain that runs already, None for one of its own."""

    directory: Path
    workers: int = 2
    validators: int = 1
    cheats: tuple[str, ...] = ("own-problems",)
    liars: tuple[str, ...] = ()
    steps: int | None = None
    seed: int = 0
    run_file: Path | None = None
    sets: tuple[str, ...] = ()
    resume: bool = False
    lingers: bool = False
    page: str | None = None
    worker_engine: str | None = None
    churn: bool = False
    trainers: int = 1
    replicas: bool = False
    leader: str | None = None
    kills: bool = True
    network: Path | None = None

    @property
    def casting(self) -> Casting:
        who = self.workers, self.validators, self.cheats, self.liars, self.seed, self.worker_engine
        return Casting(*who, self.trainers, self.replicas, self.leader, str(self.network) if self.network else None)


def remembered(scene: Scene) -> Casting:
    """The casting that the demo of a directory began with; the default where it is not known."""
    try:
        return msgspec.json.decode(scene.cast_file.read_bytes(), type=Casting)
    except (OSError, *UNREADABLE):
        return Casting()


LATECOMER = "latecomer"
"""The worker that joins a demo which pre-trains, when another one was killed."""


def cast(options: DemoOptions) -> tuple[DemoMember, ...]:
    """The trainers, the workers, the validators, and the cheats, each a worker of its own; the latecomer last."""
    workers = [DemoMember(f"worker {i + 1}", "worker") for i in range(options.workers)]
    lies = [*options.liars, *[None] * options.validators][: options.validators]
    validators = [
        DemoMember(name, "validator", lie) for name, lie in zip(_numbered("validator", len(lies)), lies, strict=True)
    ]
    names = _numbered("cheat", len(options.cheats))
    cheats = [DemoMember(name, "worker", cheat) for name, cheat in zip(names, options.cheats, strict=True)]
    late = [DemoMember(LATECOMER, "worker")] if options.churn else []
    others = [f"trainer {i + 2}" for i in range(options.trainers - 1)]
    behind = [
        DemoMember(name, "trainer") for name in (others if options.replicas else _numbered("standby", len(others)))
    ]
    leader = options.leader
    if leader in standbys():
        leader, behind[0] = None, replace(behind[0], cheat=leader)
    # The first trainer manages the pool; the order is that of the table, and of the chair's turns.
    return (DemoMember("trainer", "trainer", leader), *behind, *workers, *validators, *cheats, *late)


def quorum_of(validators: int) -> int:
    """How many of a demo's validators decide: more than half."""
    return validators // 2 + 1


def join_command(
    part: DemoMember,
    scene: Scene,
    profile: Path,
    pool: int,
    page: str | None = None,
    worker_engine: str | None = None,
) -> Sequence[str]:
    """The command line of a participant: the daemon that everybody runs, or a dishonest one in its place."""
    command = [
        sys.executable,
        "-m",
        *program_module(part.cheat),
        "join",
        "--role",
        part.role,
        "--network",
        str(profile),
    ]
    command += ["--pool", str(pool), "--state-dir", str(scene.state_dir(part.name))]
    if part.role == "trainer":
        # Only the trainer reads the run from its file; the others fetch it from members, as in any pool.
        command += ["--run", str(scene.run_file)]
        command += ["--page", page] if page else []
    if part.cheat and part.role != "trainer" and part.cheat not in nodes() | seats() | round_liars():
        command += ["--engine-command", shlex.join([sys.executable, "-m", *engine_module(part.cheat)])]
    if part.role == "worker" and part.cheat is None and worker_engine:
        command += ["--engine-command", worker_engine]
    return command


def _numbered(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name} {i + 1}" for i in range(count)]
