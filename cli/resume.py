"""How a training at a desk begins, and what may change when it goes on: how long it lasts, and nothing that is past.

A resumed run has the batches and losses that it would have had without the interruption. Seed, recipe and async level
are part of that; so is the learning rate's schedule. More steps are only more of the same.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cli.errors import USAGE, CommandError
from cli.options import hear
from cli.pretraining import check_peers
from cli.run_directory import RunDirectory
from cli.run_template import settings_of, with_real_paths

if TYPE_CHECKING:
    from node.run.file import CompiledRun, RunFile
    from protocol.pretraining import Pretraining

DEFAULT_LEVEL = 1


class RunOverrides(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says of the run. sets: NAME=VALUE as if they stood in its file; None: nothing."""

    sets: tuple[str, ...] = ()
    async_level: int | None = None
    peers: int | None = None


def must_hold_a_run(home: RunDirectory) -> None:
    if not home.can_resume():
        raise CommandError(
            "there is no run to go on with", f"{home.directory} holds none", "start one without --resume"
        )


def begin(
    home: RunDirectory,
    original: "RunFile",
    file: Path,
    overrides: RunOverrides,
    *,
    fresh: bool,
    begun: "RunFile | None" = None,
) -> "tuple[CompiledRun, int]":
    """(the run, its async level, or of a run that pre-trains its peers), put into a directory that is empty or may be
    cleared.

    original: the contents of `file`, with the overrides' words. begun: what it said without them. `run.toml` is written
    last: with it, the run can be resumed.
    """
    from node.run.sources import pinned

    run = _with_level(pinned(original, file.parent), overrides)
    compiled = compile_checked(run, file)
    level = overrides.async_level
    if level is None:
        # A run that allows no staleness would have every file refused at level 1.
        level = min(DEFAULT_LEVEL, compiled.spec.recipe.max_staleness)
    check_peers(compiled.spec, overrides.peers or 1)
    if run.pretraining is not None:
        _refuse_words_of_rollouts(overrides)
        level = overrides.peers or 1
    # After all checks: --fresh deletes, and a run that is then refused should not have cost the old one.
    if fresh and (own := [path for path in compiled.files.values() if home.directory in path.resolve().parents]):
        why = f"{own[0]} is there"
        raise CommandError("--fresh would delete what the run begins with", why, "name another --dir", USAGE)
    home.claim(fresh=fresh)
    home.place_assets(compiled)
    home.write_level(level)
    home.write_peers(overrides.peers or 1)
    home.write_begun(_placed(begun or original, file))
    home.write_run(_placed(run, file))
    return compiled, level


def go_on(
    home: RunDirectory, named: "RunFile | None", file: Path | None, overrides: RunOverrides
) -> "tuple[CompiledRun, int]":
    """(the run that the directory holds, its async level or peers). Raises CommandError for what would change its past.

    named: the contents of `file`, which the command line names besides; the run must have been begun with them.
    """
    from node.run.file import load_run_file

    run = load_run_file(home.run_file)
    level = home.read_level(min(DEFAULT_LEVEL, run.recipe.max_staleness))
    longer = load_run_file(home.run_file, overrides.sets)
    _refuse_another_past(run, longer, level, home.read_peers(), overrides)
    if named is not None and file is not None and home.begun_file.exists():
        # Both with whole paths: named from another working directory it is still the same file.
        _refuse_an_edited_file(load_run_file(home.begun_file), _placed(named, file), file)
    if longer.recipe.steps != run.recipe.steps:
        _refuse_a_length(home, run, longer.recipe.steps)
        run = msgspec.structs.replace(run, recipe=msgspec.structs.replace(run.recipe, steps=longer.recipe.steps))
        home.write_run(run)
    return compile_checked(run, home.run_file), level


def _with_level(run: "RunFile", overrides: RunOverrides) -> "RunFile":
    if overrides.async_level is None:
        return run
    # Else the pool would drop what the level makes as too old.
    staleness = max(run.recipe.max_staleness, overrides.async_level)
    return msgspec.structs.replace(run, recipe=msgspec.structs.replace(run.recipe, max_staleness=staleness))


def compile_checked(run: "RunFile", base: Path) -> "CompiledRun":
    """base: the file that the run's paths are relative to."""
    from cli.run import note_what_is_odd
    from node.run.file import compile_run
    from node.run.problems import check_run

    compiled = compile_run(base, run, desk=True, reach="whole", on_progress=hear)
    note_what_is_odd(compiled, check_run(compiled))
    return compiled


def _placed(run: "RunFile", file: Path) -> "RunFile":
    return with_real_paths(run, file.resolve().parent)


def _refuse_another_past(
    run: "RunFile", changed_run: "RunFile", level: int, peers: int, overrides: RunOverrides
) -> None:
    # Compared by what they would do: to give the same seed again changes nothing, and is allowed.
    before, after = settings_of(run), settings_of(changed_run)
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name) and name != "recipe.steps"]
    if run.pretraining is not None:
        _refuse_words_of_rollouts(overrides)
        changed += [f"--peers (there are {level})"] * (overrides.peers not in (None, level))
    elif overrides.peers not in (None, peers):
        changed.append(f"--peers (there are {peers})")
    if overrides.async_level not in (None, level):
        changed.append(f"--async-level (it is {level})")
    if changed:
        raise CommandError(
            f"a resumed run cannot change {', '.join(changed)}",
            "it would not be the run that was begun",
            "resume without them, or start a run in another --dir",
            USAGE,
        )


def _refuse_words_of_rollouts(overrides: RunOverrides) -> None:
    preset = any(one.partition("=")[0].strip() == "recipe.name" for one in overrides.sets)
    given = {"--async-level": overrides.async_level is not None, "--recipe (recipe.name)": preset}
    if words := [name for name, is_given in given.items() if is_given]:
        raise CommandError(
            f"{' and '.join(words)}: that is how rollouts are learnt from",
            "this run pre-trains on text",
            "leave it out; [pretraining] and [diloco] of the run file say how it learns",
            USAGE,
        )


def _refuse_an_edited_file(begun: "RunFile", now: "RunFile", file: Path) -> None:
    before, after = settings_of(begun), settings_of(now)
    differ = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    if not differ:
        return
    first = differ[0]
    most_named = 3  # settings that are named
    more = f" and {len(differ) - most_named} more" if len(differ) > most_named else ""
    raise CommandError(
        f"{file} is not the run file that this run was begun with",
        f"{', '.join(differ[:most_named])}{more} differ ({first}: {_said(before, first)}, now {_said(after, first)})",
        "to go on as it was begun, resume with --dir and without --run (--steps N: train for longer); "
        "or start a run in another --dir",
        USAGE,
    )


def _said(settings: Mapping[str, Any], name: str) -> str:
    value = settings.get(name)
    return "not set" if value is None else str(value)[:60]


def _refuse_a_length(home: RunDirectory, run: "RunFile", steps: int) -> None:
    """More steps must be able to teach something, fewer must not be past."""
    from node.training.spool import Spool

    done = Spool(home.spool).newest_step() if home.spool.exists() else -1
    if steps < done:
        raise CommandError(
            f"the run cannot end at step {steps}", f"it has done {done} already", f"give --steps {done} or more", USAGE
        )
    if run.pretraining is not None and run.diloco is not None:
        _refuse_another_schedule(run.pretraining, run.diloco.round_steps, done, (run.recipe.steps, steps))
        return
    decay = run.recipe.decay_steps
    if decay and steps > max(decay, run.recipe.steps):
        raise CommandError(
            f"training on to step {steps} would teach nothing",
            f"the learning rate is 0 from step {decay} on (recipe.decay_steps), and another schedule would change the "
            "steps that are done",
            f"start a run with a schedule of its own from the trained model: model = {str(home.model)!r}; runs with "
            "decay_steps = 0 can go on for ever",
            USAGE,
        )


def _refuse_another_schedule(text: "Pretraining", round_steps: int, done: int, rounds: tuple[int, int]) -> None:
    """rounds: of the run before and now. What is done must lie before the decay of both."""
    first = min(text.decays_from(total * round_steps) for total in rounds)
    if done * round_steps > first:
        raise CommandError(
            f"the run cannot end at round {rounds[1]}",
            f"{done * round_steps} inner steps are done, and with {rounds[0]} or {rounds[1]} rounds the learning rate "
            f"falls from step {first} on (pretraining.decay_from): another end would change the steps that are done",
            "start a run whose model is the trained one, with a schedule of its own",
            USAGE,
        )
