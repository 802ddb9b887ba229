"""`intellect-node push`: a trained policy to the hub, with the card that its run earned."""

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import RUN, USAGE, CommandError
from cli.options import hear
from cli.output import AsJson, asking, clean, console, print_json
from cli.places import state_dir_option

if TYPE_CHECKING:
    from node.weights.card import CardAnswer, ModelCard

EXAMPLES = (
    "Examples:  intellect-node push runs/sums me/sums --dry-run   |   "
    "intellect-node push runs/sums@20 me/sums --private --gguf q8_0   |   "
    "intellect-node push my-export me/sums --state-dir ~/nodes/a"
)
NOT_KNOWN = "its licence is not known"
_FRONT = ("base_model", "license")


def command(
    source: Annotated[str, typer.Argument(metavar="RUN[@STEP]|DIR", help="Of `train`; or of `weights export`.")],
    repository: Annotated[str, typer.Argument(metavar="ORG/NAME", help="Where to; it is made if it is not there.")],
    private: Annotated[bool, typer.Option("--private", help="Make it a private one.")] = False,
    gguf: Annotated[str | None, typer.Option(help="Also one file for llama.cpp and ollama: bf16, f16, q8_0.")] = None,
    licence: Annotated[
        str | None, typer.Option(help="The model's, as the hub calls it (apache-2.0). Default: its base's.")
    ] = None,
    state_dir: Annotated[
        Path | None, state_dir_option("Of a running node of its pool, whose verdicts the card tells.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the list and the card, and send nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Push a policy, model or adapter, with its run file and a card: curve, answers before and after, roots, and how to
    check and run it.

    What would be sent is shown first. All of it appears in one commit, or nothing; run again, only what is missing is
    sent. The token is that of the hub's client: hf auth login.
    """
    from cli.evaluate import place_of
    from cli.run import require_training
    from cli.weights import check_kind
    from node import hub
    from node.weights.errors import disk_errors

    check_kind(gguf)
    require_training("the hub's client comes with the extra [train], which is not installed", "install")
    there = None if dry_run and hub.offline() else hub.target(repository)
    if there and private and not there.private:
        why = "--private makes a new repository private, and this one is there already"
        raise CommandError(f"{repository} is public", why, "change it on the hub, or name another one", RUN)
    path, number = place_of(source)
    # Beside the model: where a system keeps temporary files there may be no room for it.
    place = path.parent if path.is_dir() else None
    with tempfile.TemporaryDirectory(prefix=".push-", dir=place) as folder:
        out = Path(folder) / "model"
        with disk_errors("what is to be pushed"):
            card = _made(path, number, out, repository, gguf)
        card.licence = licence or card.licence or _asked_licence(card.base)
        if state_dir is not None:
            card.verdicts = _verdicts(state_dir)
        (out / "README.md").write_text(card.text(), encoding="utf-8")
        files = {one.relative_to(out).as_posix(): one for one in sorted(out.rglob("*")) if one.is_file()}
        sizes = {name: path.stat().st_size for name, path in files.items()}
        gone = hub.stale(files, there)
        if not as_json:
            kind = "private" if private or (there and there.private) else "public"
            _show(f"{repository}: {'there' if there else 'new'}, {kind}", card, sizes, gone)
        url = ""
        if dry_run:
            console().print(card.text(), markup=False, soft_wrap=True, end="") if not as_json else None
        else:
            _confirm(repository, yes)
            url = hub.push(repository, files, there, private=private, message=_message(card))
    if as_json:
        told = {"repository": repository, "licence": card.licence, "files": sizes, "removed": gone, "url": url}
        print_json({**told, "card": card.text() if dry_run else None})
    elif url:
        console().print(url, soft_wrap=True, markup=False)


def _made(path: Path, number: int | None, out: Path, repository: str, gguf: str | None) -> "ModelCard":
    """Puts the files into `out`. Raises CommandError, WeightsError, TrainingError."""
    if (path / "spool").is_dir():
        return _of_training(path, number, out, repository, gguf)
    if number is None and (path / "config.json").is_file():
        return _of_directory(path, out, repository, gguf)
    why = "there is no spool of `train` there, and no config.json"
    raise CommandError(f"nothing to push at {path}", why, "name RUN or RUN@STEP, or a directory of weights export", RUN)


def _of_training(path: Path, number: int | None, out: Path, repository: str, gguf: str | None) -> "ModelCard":
    import shutil

    from cli.demo.report import copy_model
    from cli.run_directory import RunDirectory
    from cli.weights import for_others, planned
    from node.run.file import load_run_file
    from node.training.spool import Spool, image_of
    from node.weights.card import ModelCard
    from node.weights.export import POLICY_DIRECTORY, describe_files, holds_adapter
    from protocol.blobs import describe
    from protocol.policy import policy_root
    from protocol.run import decode_run

    home = RunDirectory(path)
    step, image = image_of(home.spool, number)
    model, encoded = home.spool / "assets" / "model", Spool(home.spool).run_path.read_bytes()
    plan, run = planned(model, gguf), decode_run(encoded)
    copy_model(home.spool, out, step)
    named = for_others(out, plan, gguf, repository.rpartition("/")[2])
    adapter = holds_adapter(image)
    if adapter:
        (out / POLICY_DIRECTORY).mkdir()
        shutil.copyfile(image, out / POLICY_DIRECTORY / "model.safetensors")
    base, licence = _base(home, run.sources.get("model", ""))
    if adapter:
        _lift_adapter(out, base, named.get("gguf"))
    records = [one for one in _records(path / "metrics.jsonl") if one.get("step", 0) <= step]
    return ModelCard(
        title=repository.rpartition("/")[2],
        repository=repository,
        base=base,
        tied="model" in run.sources,
        licence=licence,
        adapter=adapter,
        run=run.name,
        step=step,
        run_root=describe(encoded).root.hex(),
        root=policy_root(step, describe_files([image])).hex(),
        curve=[(one["step"], one["eval_reward"]) for one in records if isinstance(one.get("eval_reward"), float)],
        problems=run.evaluation.problems,
        before=_answers(home.spool, 0),
        after=_answers(home.spool, step),
        gguf=str(named.get("gguf", "")),
        run_file=_portable(load_run_file(home.run_file), run.sources),
    )


def _of_directory(path: Path, out: Path, repository: str, gguf: str | None) -> "ModelCard":
    """Of `weights export`, `fetch` or `merge`: whose it is says its record, where it has one."""
    import shutil

    from cli.weights import for_others, planned
    from node.weights.card import ModelCard
    from node.weights.export import POLICY_DIRECTORY
    from node.weights.records import RECORD_NAME, read_record

    plan = planned(path, gguf)
    shutil.copytree(path, out, ignore=shutil.ignore_patterns(".*", "*.gguf", "README.md", "Modelfile"))
    named = for_others(out, plan, gguf, repository.rpartition("/")[2])
    adapter = (path / POLICY_DIRECTORY).is_dir()
    record = read_record((path / POLICY_DIRECTORY if adapter else path) / RECORD_NAME)
    card = ModelCard(repository.rpartition("/")[2], repository, adapter=adapter, gguf=str(named.get("gguf", "")))
    card.base, card.licence = _said(path)
    if adapter:
        _lift_adapter(out, card.base, named.get("gguf"))
    if record is not None:
        card.signed, card.step, card.root = True, record.manifest.step, record.manifest.policy_root.hex()
        card.run_root = record.manifest.run_root.hex()
    return card


# --- what the card tells -------------------------------------------------------------------------


def _base(home: Any, origin: str) -> tuple[str, str]:
    """(the model that it began as, its licence). origin: hf:OWNER/NAME@COMMIT, where it came from the hub."""
    from node import hub
    from node.run.file import load_run_file

    if origin:
        name = hub.read_name(origin, "model")
        assert name is not None  # the run was checked
        try:
            return name.repository, hub.look(name).licence
        except hub.HubError:  # gone since, or private: whoever pushes has to know it then
            return name.repository, ""
    model = Path(load_run_file(home.run_file).model)
    _, licence = _said(model)
    return model.name, licence


def _said(model: Path) -> tuple[str, str]:
    """(base, licence) by the front matter of a card that lies there."""
    import re

    try:
        head = (model / "README.md").read_text(encoding="utf-8")[:65536]
    # A card is a help, not a need: what it does not say is asked for.
    except (OSError, UnicodeDecodeError):
        return "", ""
    front = head.split("\n---", 1)[0] if head.startswith("---\n") else ""
    base, licence = (re.search(rf"^{name}:\s*[\"']?([\w./-]+)", front, re.MULTILINE) for name in _FRONT)
    return base[1] if base else "", licence[1] if licence else ""


def _asked_licence(base: str) -> str:
    if not sys.stdin.isatty():
        why = f"the card of {base or 'the base'} names none, and nobody can be asked here"
        raise CommandError(NOT_KNOWN, why, "--licence apache-2.0, or what its owner says", USAGE)
    with asking():
        return typer.prompt(f"{NOT_KNOWN}. Under which licence is {base or 'its base'}? (apache-2.0, llama3.2, other)")


def _lift_adapter(out: Path, base: str, gguf: str | None) -> None:
    """An adapter's files where PEFT and this program find them by a name, and the model that it is to by its name: here
    it is a directory of this machine. The base is not sent again."""
    import json

    from node.weights.export import ADAPTER_DIRECTORY, MERGED_WEIGHTS
    from protocol.lora import ADAPTER_CONFIG

    for name in (MERGED_WEIGHTS, "config.json", "Modelfile"):
        (out / name).unlink(missing_ok=True)
    for one in (out / ADAPTER_DIRECTORY).iterdir():
        one.rename(out / one.name)
    (out / ADAPTER_DIRECTORY).rmdir()
    told = json.loads((out / ADAPTER_CONFIG).read_bytes())
    told["base_model_name_or_path"] = base or Path(told["base_model_name_or_path"]).name
    (out / ADAPTER_CONFIG).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    if gguf:
        (out / "Modelfile").write_text(f"FROM ./{gguf}\n", encoding="utf-8")


def _records(path: Path) -> list[dict[str, Any]]:
    from node.metrics.journal import read_records

    return list(read_records(path)) if path.is_file() else []


def _answers(spool: Path, step: int) -> "list[CardAnswer]":
    import json

    from node.weights.card import CardAnswer

    # Not every step is evaluated: those of the last one that was, up to this.
    path = max((one for one in spool.glob("eval/answers-*.json") if one.stem <= f"answers-{step:06d}"), default=None)
    try:
        found = json.loads(path.read_bytes()) if path else []
    except (OSError, ValueError):
        return []
    return [CardAnswer(one["prompt"], one["answer"], float(one["reward"])) for one in found]


def _portable(run: Any, sources: dict[str, str]) -> str:
    """The run file without this machine's paths: names of the hub, or what a path ends with."""
    from cli.run_template import render_run
    from node.run.sources import with_sources

    def named(text: str, kind: str) -> str:
        if text.startswith("hf:"):
            return text
        return sources.get("model", Path(text).name) if kind == "model" and text == run.model else Path(text).name

    return render_run(with_sources(run, named))


def _verdicts(state_dir: Path) -> dict[str, object]:
    from cli.api import ask, socket_of

    told = ask(socket_of(state_dir), "GET", "/status").get("verdicts") or {}
    reasons = ", ".join(f"{name} {count}" for name, count in sorted((told.get("by_reason") or {}).items()))
    refused = f"{told.get('rejected', 0)}" + (f" ({reasons})" if reasons else "")
    return {"files accepted": told.get("accepted", 0), "files refused": refused}


# --- what is shown and asked ---------------------------------------------------------------------


def _show(where: str, card: "ModelCard", sizes: dict[str, int], gone: Iterable[str]) -> None:
    from node.hub import size_of

    hear(f"{where}, licence {clean(card.licence, 60)}")
    for name, size in sizes.items():
        hear(f"  {clean(name, 100):<44}{size_of(size):>10}")
    for name in gone:
        hear(f"  {clean(name, 100):<44}   removed: it is of an earlier push")


def _confirm(repository: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError("nothing was pushed", "nobody can be asked here", "--yes, or --dry-run to look", USAGE)
    with asking():
        if not typer.confirm(f"Push this to {repository}?"):
            raise CommandError("nothing was pushed", "the question was answered with no", "run it again", USAGE)


def _message(card: "ModelCard") -> str:
    return f"{card.run or 'policy'}, step {card.step}" if card.step is not None else card.title
