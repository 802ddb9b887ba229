"""Whether a run's prompts are the same in another process, before strangers render them and are paid by them.

A worker renders a prompt, and each validator renders it again. An environment that walks over a set, or asks for the
clock, gives each another one, and no file would ever be decided. So the owner's desk renders them here and in a child
with other surroundings: another seed of Python's hashes, another directory, another time zone (and day), another time.
What is compared is what `run validate` looks at: prompts, right answers, and what stands between two turns.

The child: `python -m node.run.rendering FOLDER`, where the run's files are laid out. One line for each problem.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from pathlib import Path

import msgspec

from node.environments.base import Environment, Problem
from node.environments.registry import load_environment, looked_at
from node.errors import RunFileError
from node.inference.tokenizer import LocalTokenizer
from node.run.file import CompiledRun
from node.run.problems import asked, place_files
from protocol.errors import IntellectError
from protocol.run import RunSpec, decode_run, encode_run
from protocol.values import prompts_hash

RUN = "run"
FURTHEST_EAST, FURTHEST_WEST = ("Etc/GMT-14", 14), ("Etc/GMT+12", -12)
_SAID = "Go on."
"""What an environment may say between two turns."""


class Rendered(msgspec.Struct, frozen=True, array_like=True):
    """A problem as this process has it. place: its environment and number; prompt: hash of its tokens."""

    place: str
    id: str
    prompt: str
    answer: tuple[str, ...]


def check_rendering(run: CompiledRun) -> None:
    """Raises RunFileError that names the first problem which another process has otherwise. Blocks."""
    if run.spec.pretraining is not None:
        return
    with tempfile.TemporaryDirectory(prefix="intellect-run-") as folder:
        assets = Path(folder) / "assets"
        place_files(run, assets)
        # Of a model whose weights are not here the run has no root yet, and no bytes.
        (Path(folder) / RUN).write_bytes(encode_run(run.spec))
        own = list(rendered(run.spec, assets))
        theirs = _in_a_child(Path(folder))
    for mine, other in zip_longest(own, theirs):
        if mine != other:
            raise _differs(mine or other, _what(mine, other))


def rendered(run: RunSpec, assets: Path) -> Iterator[Rendered]:
    """What members would draw, and what evaluations ask. Raises what loading does."""
    tokenizer = LocalTokenizer(assets / "model")
    for settings in (run.environment, *run.evaluation.environments):
        with closing(load_environment(settings, assets, tokenizer)) as environment:
            for number in looked_at(environment):
                yield _rendered(run, environment, f"{settings.name}, problem {number}", environment.problem(number))
            for number in range(min(environment.held_back, run.evaluation.problems)):
                place = f"{settings.name}, held back {number}"
                yield _rendered(run, environment, place, environment.held_back_problem(number))


def _rendered(run: RunSpec, environment: Environment, place: str, problem: Problem) -> Rendered:
    texts = [environment.prompt_tokens(asked(run, problem))]
    # Not every environment makes its turns of text that the template frames.
    if environment.turns > 1 and (reply := getattr(environment, "reply_tokens", None)):
        texts.append(reply(_SAID))
    return Rendered(place, problem.problem_id, prompts_hash(texts).hex(), problem.answer)


def _in_a_child(folder: Path) -> list[Rendered]:
    out = folder / "rendered"
    with tempfile.TemporaryDirectory(prefix="intellect-elsewhere-") as elsewhere, out.open("wb") as file:
        try:
            done = subprocess.run(
                [sys.executable, "-m", __name__, str(folder)],
                cwd=elsewhere,
                env=_surroundings(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.PIPE,
                timeout=1800.0,  # for the child: as long as a large data set takes to load
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _not_rendered(str(error)) from error
    if done.returncode != 0:
        raise _not_rendered(done.stderr.decode(errors="replace").strip().rpartition("\n")[2])
    return [msgspec.json.decode(line, type=Rendered) for line in out.read_bytes().splitlines()]


def _surroundings() -> dict[str, str]:
    """Those of this process, but for what a prompt must not follow from."""
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    today, now = datetime.now().astimezone().date(), datetime.now(UTC)
    # One of the two has another day than this process.
    zone = next(
        name for name, hours in (FURTHEST_EAST, FURTHEST_WEST) if (now + timedelta(hours=hours)).date() != today
    )
    # The child begins in another directory, so what stands for this one is spelt out.
    paths = os.pathsep.join(str(Path(one).resolve()) for one in sys.path)
    return {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone, "PYTHONPATH": paths}


def _what(mine: Rendered | None, other: Rendered | None) -> str:
    if mine is None or other is None:
        return "there are more problems in one process than in another"
    if mine.place != other.place or mine.id != other.id:
        return f"another process has {other.id[:80]!r} there"
    return "its right answer is another one" if mine.prompt == other.prompt else "its prompt has other tokens"


def _differs(row: Rendered | None, what: str) -> RunFileError:
    place = f"{row.place} ({row.id[:80]!r})" if row else "the run"
    return RunFileError(
        "the run's problems are not the same in every process",
        f"{place}: {what} in another process, with another hash seed, directory and time zone",
        "let nothing follow from the order of a set, from hash(), an address, the clock or the directory",
    )


def _not_rendered(why: str) -> RunFileError:
    return RunFileError(
        "the run's problems cannot be made in another process", why[:300], "see that its files name nothing outside it"
    )


def main(arguments: Sequence[str]) -> int:
    folder = Path(arguments[0])
    try:
        for row in rendered(decode_run((folder / RUN).read_bytes(), desk=True), folder / "assets"):
            sys.stdout.buffer.write(msgspec.json.encode(row) + b"\n")
    except IntellectError as error:
        print(json.dumps(f"{error.what}: {error.why}"), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
