"""Environments by name, and a look at one before it is worked with."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, cast

import msgspec

from node.environments.base import Environment, EnvironmentSettings, Problem, Tokenizer, Transcript, last_answer
from node.environments.builtin import BUILTIN
from node.environments.errors import DatasetError, EnvironmentFault, nearest
from node.environments.mix import MixEnvironment, load_mix
from node.environments.package.archive import asset_name
from node.environments.package.manifest import is_name
from node.errors import Mistake, Mistakes
from node.own_code import Function, calling, load_function, unusable
from protocol.errors import IntellectError

LOOKED_AT = 4096


def load_environment(settings: EnvironmentSettings, assets: Path, tokenizer: Tokenizer) -> Environment:
    """The environment that `settings` names, with the reward function that it names; its files lie below `assets`.

    Raises EnvironmentFault (unknown name or arguments), DatasetError (bad data) or OwnCodeError (bad function).
    """
    environment = _load(settings, assets, tokenizer)
    if not settings.reward:
        return environment
    own = OwnReward(environment, settings.reward, load_function(settings.reward, assets), tokenizer)
    return cast(Environment, own)  # what it does not have itself it takes from the environment


def _load(settings: EnvironmentSettings, assets: Path, tokenizer: Tokenizer) -> Environment:
    if settings.name == MixEnvironment.name:
        return load_mix(getattr(settings, "parts", ()), lambda part: load_environment(part, assets, tokenizer))
    # The name comes from a run file and becomes part of a path, so its form is checked first.
    packaged = is_name(settings.name) and (assets / asset_name(settings.name)).is_file()
    wrong = check_arguments(settings.name, settings.args, packaged=packaged)
    if wrong:
        raise EnvironmentFault(f"environment {settings.name!r} cannot be loaded", *wrong)
    if packaged:
        from node.environments.package import environment as package

        return package.load(msgspec.convert(settings.args, package.Arguments), assets, settings.name, tokenizer)
    module = BUILTIN[settings.name].offered
    return module.load(msgspec.convert(settings.args, module.Arguments), assets, tokenizer)


def check_arguments(name: str, args: dict[str, Any], *, packaged: bool = False) -> tuple[str, str] | None:
    """(why, remedy) if there is no such environment or it does not take these arguments, else None.

    packaged: it is a package that the run brings.
    """
    if packaged:
        from node.environments.package.environment import Arguments as arguments
    elif name in BUILTIN:
        arguments = BUILTIN[name].offered.Arguments
    else:
        return f"there is no environment {name!r}", f"{nearest(name, BUILTIN)}, or update intellect-node"
    # msgspec refuses unknown keys as well, but does not say which one was meant.
    known = arguments.__struct_fields__
    for key in args:
        if key not in known:
            return f"{key!r} is no argument of the environment {name!r}", nearest(key, known)
    try:
        msgspec.convert(args, arguments, strict=True)
    except msgspec.ValidationError as error:
        return f"the arguments of the environment {name!r} are wrong: {error}", "correct args in the run file"
    return None


def looked_at(environment: Environment) -> range:
    """Numbers of the problems that are looked at: of a large environment LOOKED_AT at even distances."""
    stride = max(1, environment.size // LOOKED_AT)
    spread = 40_503
    if environment.size > 1 << 32:
        stride += spread  # the low bits of a number choose the part of a mix: every one shall be met
    return range(0, environment.size, stride)


def check_prompts(
    environment: Environment, limit: int, ask: Callable[[Problem], Problem] = lambda problem: problem
) -> int:
    """The tokens of the longest prompt. Raise DatasetError, with all findings, if some have more than `limit`.

    A worker that draws such a problem could not deliver. ask: the problem as the model is asked, where that is more
    than the problem itself.
    """
    longest, found = 0, Mistakes()
    worst: tuple[int, DatasetError] | None = None
    numbers = looked_at(environment)
    for number in numbers:
        try:
            longest = max(longest, check_prompt(environment, ask(environment.problem(number)), limit))
        except DatasetError as error:
            size = error.tokens if isinstance(error, PromptTooLong) else 0
            worst = (size, error) if worst is None or size > worst[0] else worst
            place = f"{environment.name}, problem {number}"
            found.add(Mistake(place, f"{error.what}: {error.why}", error.remedy, size))
    if worst is not None:
        first = worst[1]
        more = f" (and {found.total - 1} more of the {len(numbers)} problems looked at)" if found.total > 1 else ""
        told = DatasetError(first.what, f"{first.why}{more}", first.remedy)
        told.findings = found
        raise told
    return longest


class PromptTooLong(DatasetError):
    """tokens: of a prompt that does not fit, or has none."""

    def __init__(self, tokens: int, what: str, why: str, remedy: str) -> None:
        super().__init__(what, why, remedy)
        self.tokens = tokens


def check_prompt(environment: Environment, problem: Problem, limit: int) -> int:
    """The tokens of a problem's prompt. Raises DatasetError if it has more than `limit`, or none, or if the model's
    chat template refuses it."""
    try:
        length = len(environment.prompt_tokens(problem))
    except IntellectError as refused:
        why = f"problem {problem.problem_id[:80]!r}: {refused.why}"
        raise DatasetError(refused.what, why, refused.remedy) from None
    if not 1 <= length <= limit:
        raise PromptTooLong(
            length,
            "a prompt does not fit the run",
            f"problem {problem.problem_id[:80]!r} has {length} tokens, rollout.max_prompt_tokens is {limit}",
            f"set rollout.max_prompt_tokens to {length} or more, or long_prompts = 'skip' below [environment.args]"
            if length
            else "remove the problem",
        )
    return length


def needs_runtime(name: str, args: Mapping[str, int | float | str], files: Mapping[str, Path]) -> bool:
    """Whether a built-in environment runs programs. files: asset -> file; raises DatasetError for a bad one."""
    if args.get("packages") or name == "repository":
        return True
    if name == "tools":
        from node.environments.tools.environment import calls_python

        if calls_python(args):
            return True
    row = BUILTIN.get(name)
    data = files_below(str(args.get(row.data, "")), files) if row and row.data else []
    if not data:
        return False
    from node.environments.dataset import runs_programs

    return any(runs_programs(file) for file in data)


def files_below(asset: str, files: Mapping[str, Path]) -> list[Path]:
    """The file of an asset, or those of a directory of assets in the order in which they are read."""
    if asset in files:
        return [files[asset]]
    return [files[name] for name in sorted(files) if asset and name.startswith(f"{asset}/")]


# A reward function of one's own over the problems of any environment: `score(row, answer) -> float`, at a desk.
# row: what the problem is (Row); answer: the text that was sampled last, special tokens left out, also where the length
# limit cut it off. Whatever is finite may be returned, also -1 or 7. The function is trusted and has no deadline: it is
# its owner's code in its owner's process, and at a desk no verdict depends on it.
_WANTED = "a finite number"


class DatasetRow(TypedDict):
    """answer: whatever the environment's own scorer compares with: for mathematics right answers, any of them; for a
    package its row as JSON."""

    problem_id: str
    prompt: str
    answer: tuple[str, ...]


class OwnReward:
    """The environment with another scorer; everything else is the environment's."""

    def __init__(self, environment: Environment, import_path: str, function: Function, tokenizer: Tokenizer) -> None:
        self._environment = environment
        self._import_path = import_path
        self._function = function
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    # Without this, __getattr__ would hand out the environment's own copy, which scores without the function.
    def another(self) -> None:
        """The function is its owner's, and is called by one thread at a time."""

    def score(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[float]:
        """Raises OwnCodeError."""
        return [self._one(problem, transcript) for problem, transcript in zip(problems, transcripts, strict=True)]

    def _one(self, problem: Problem, transcript: Transcript) -> float:
        row = DatasetRow(problem_id=problem.problem_id, prompt=problem.prompt, answer=problem.answer)
        answer = self._tokenizer.decode(last_answer(transcript))
        returned = calling(self._import_path, self._function, row, answer, wanted=_WANTED)
        try:
            reward = float(returned)
        except (TypeError, ValueError):
            reward = math.nan
        if not math.isfinite(reward):
            shown = f"{returned!r}"[:80]
            raise unusable(self._import_path, f"{shown} for problem {problem.problem_id[:80]!r}", _WANTED)
        return reward
