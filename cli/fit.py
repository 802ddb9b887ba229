"""What a new run file says because of its model and its data: limits, rate, instruction, each with its reason."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cli.errors import USAGE, CommandError

if TYPE_CHECKING:
    from node.environments.base import Problem
    from node.environments.dataset import DatasetRows
    from node.inference.tokenizer import LocalTokenizer

STEP = 32
"""Tokens to which limits are rounded up."""
BEHIND_MARK = 'Think step by step, and end with the result alone behind "####".'
IN_BOX = "Think step by step, and put the final answer into \\boxed{}."


@dataclass
class Fit:
    """model, dataset: as they are written. numbers, arguments: setting -> (value, why). notes: for whoever asked."""

    model: str
    dataset: str | None
    chat: bool = True
    parameters: int = 0
    numbers: dict[str, tuple[Any, str]] = field(default_factory=dict)
    arguments: dict[str, tuple[Any, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def fitted(
    model: str,
    dataset: str | None,
    base: Path,
    on_progress: Callable[[str], object],
    *,
    rows: bool = True,
    said: Mapping[str, Any] = MappingProxyType({}),
    later: bool = False,
) -> Fit:
    """Looks at a model and a data set where they are, or at the hub's; of what is not there yet nothing is known.
    base: the run file's directory; rows: whether the data are those of `dataset`; said: arguments that are given;
    later: whether a hub that gives no answer is a note. Raises RunFileError, ModelError, DatasetError."""
    from node import hub

    try:
        return _fitted(model, dataset, base, on_progress, rows, said)
    except hub.SilentError as error:
        if not later:
            raise
        on_progress(f"note: {error.what} ({error.why}): nothing is known of it yet, so its limits are guesses")
        return Fit(model, dataset)


def _fitted(
    model: str,
    dataset: str | None,
    base: Path,
    on_progress: Callable[[str], object],
    rows: bool,
    said: Mapping[str, Any],
) -> Fit:
    from node import hub
    from node.inference.chat_template import has_chat_template
    from node.inference.weight_files import has_weights, weight_files

    source = hub.name_or_path(model, base, "model")
    if isinstance(source, hub.Name):
        had = hub.have(source, "headers", on_progress)
        place, fit = had.directory, Fit(str(had.name), dataset)
    else:
        place, fit = source, Fit(model, dataset)
    if place.is_dir():
        fit.chat = has_chat_template(place)
        # Of the files' headers: the rate follows from the size, and no weight is read for it.
        fit.parameters = weight_files(place).numbers if has_weights(place) else 0
    if dataset is None:
        return fit
    data = hub.name_or_path(dataset, base, "dataset")
    if isinstance(data, hub.Name):
        found = hub.have(data, "whole", on_progress)
        fit.dataset, files = str(found.name), sorted(found.directory.iterdir())
    else:
        files = _local(dataset, base)
    if rows and files and (place / "tokenizer.json").is_file():
        _fit_rows(fit, files, place, said)
    return fit


def _local(dataset: str, base: Path) -> list[Path]:
    from node.run.sources import data_files

    path = base / Path(dataset).expanduser()
    if not path.exists() and not set(dataset) & {*"*?[#"}:
        return []
    return list(data_files(dataset, base, "dataset").values())


def _fit_rows(fit: Fit, files: Sequence[Path], model: Path, said: Mapping[str, Any]) -> None:
    import msgspec

    from node.environments.dataset import Arguments, asking, collect
    from node.inference.tokenizer import LocalTokenizer
    from node.run.problems import positions_of

    written = {"template": "chat" if fit.chat else "plain", **said}
    arguments = msgspec.convert({**written, "path": "", "on_bad_row": "skip", "instruction": ""}, Arguments)
    rows = collect(files, arguments)
    fit.chat = arguments.template == "chat"
    problems = [*rows.training, *rows.held_back]
    total = len(problems) + rows.skipped.total
    if not problems or rows.skipped.total > total / 2:
        first = rows.skipped.first[0] if rows.skipped.first else None
        raise CommandError(
            f"the rows of {fit.dataset} cannot be scored as they are",
            f"{rows.skipped.total} of {total}: {first.place}: {first.what}" if first else "there are none",
            "name its columns: --set environment.args.prompt_column=NAME (answer_column, messages_column)",
            USAGE,
        )
    if rows.skipped.total:
        worst = rows.skipped.kinds.most_common(1)[0][0]
        fit.arguments["on_bad_row"] = ("skip", f"{rows.skipped.total:,} of {total:,} rows cannot be used: {worst}")
    _fit_share(fit, rows)
    tokenizer = asking(LocalTokenizer(model), arguments)
    if "instruction" in said:
        fit.arguments["instruction"] = (said["instruction"], "")
    else:
        _fit_instruction(fit, rows, problems)
    _fit_lengths(fit, files, problems, tokenizer, positions_of(model))


def _fit_share(fit: Fit, rows: "DatasetRows") -> None:
    count = len(rows.training) + len(rows.held_back)
    few_held_back = 64
    share = 0.05 if count * 0.05 >= few_held_back else round(min(0.3, few_held_back / count), 2)
    fit.arguments["held_back_share"] = (share, f"of {count:,} problems, for evaluation; never trained on")


def _fit_instruction(fit: Fit, rows: "DatasetRows", problems: "Sequence[Problem]") -> None:
    """Where a mark is looked for and no prompt asks for one, a right answer among others would score 0. A model
    that is asked without a chat goes on with the text, and does as it was taught."""
    if not fit.chat:
        return
    from node.environments.task_types.table import MARKED_TASKS, MARKS

    marked = [one for one in problems if one.task in MARKED_TASKS]
    unasked = [one for one in marked if not any(mark in one.prompt for mark in MARKS)]
    if len(unasked) * 2 <= len(problems):
        return
    gsm8k = Counter(rows.shapes).most_common(1)[0][0] == "GSM8K"
    why = f"{len(unasked):,} of {len(problems):,} prompts do not say where the answer goes"
    fit.arguments["instruction"] = (BEHIND_MARK if gsm8k else IN_BOX, why)


def _fit_lengths(
    fit: Fit, files: Sequence[Path], problems: "Sequence[Problem]", tokenizer: "LocalTokenizer", positions: int
) -> None:
    from node.environments.dataset import read_problems

    instruction = fit.arguments.get("instruction", ("", ""))[0]
    texts = [_asked(one, tokenizer, chat=fit.chat, instruction=instruction) for one in problems]
    prompts = _lengths(texts, tokenizer)
    longest = prompts[-1]
    answers: list[str] = []
    worked = 0
    for file in files:
        for _, published in read_problems(file):
            gold = published.gold if isinstance(published.gold, str) else ""
            truth = str(published.info.get("ground_truth", ""))
            worked += len(gold) > len(truth) + 8
            answers.append(gold or truth)
    lengths = _lengths(answers, tokenizer)
    most = lengths[int(0.99 * (len(lengths) - 1))] + 1 if lengths else 0  # and its end
    if worked * 2 > len(answers):
        output, why = _rounded(2 * most), f"twice what 99 of 100 worked answers have: {most}"
    elif fit.chat:
        # Tokens in which a chat model thinks and answers.
        output, why = 512, "the truths are bare, so that a chat model has room to think"
    else:
        output, why = max(16, _rounded(2 * most, 16)), f"twice what 99 of 100 truths have: {most}"
    prompt, reason = _rounded(longest), f"the longest of {len(prompts):,} prompts has {longest}"
    if positions and prompt + output > positions:
        room = positions * 3 // 4 // STEP * STEP
        long = sum(length > room for length in prompts)
        # Share of prompts that are left out because they are too long for the model.
        if prompt > room and 0 < long <= len(prompts) * 0.1:
            fit.arguments["long_prompts"] = ("skip", f"{long:,} prompts are longer, up to {longest} tokens")
            prompt, reason = room, f"the model has {positions} positions, and answers need some"
        if prompt <= room:  # else most prompts are too long for this model, of which `run validate` has a note
            output, why = positions - prompt, f"the model has {positions} positions, and prompts up to {prompt}"
    fit.numbers["max_prompt_tokens"], fit.numbers["max_output_tokens"] = (prompt, reason), (output, why)


def _lengths(texts: Sequence[str], tokenizer: "LocalTokenizer") -> list[int]:
    """In tokens, ascending; of many texts those of the longest."""
    # Prompts and answers that are tokenised, the longest in characters; all of most data sets.
    longest = sorted(texts, key=len)[-20_000:]
    return sorted(map(len, tokenizer.encode_all(longest)))


def _asked(problem: "Problem", tokenizer: "LocalTokenizer", *, chat: bool, instruction: str) -> str:
    prompt = f"{problem.prompt}\n{instruction}" if instruction else problem.prompt
    return tokenizer.render([*problem.before, ("user", prompt)]) if chat else prompt


def _rounded(count: int, step: int = STEP) -> int:
    return -(-count // step) * step
