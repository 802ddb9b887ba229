"""From what a person asks for to a task's specification and files; and what is made of a task that has ended."""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli import api
from cli.errors import NETWORK, RUN, USAGE, CommandError
from cli.output import clean, console, duration, print_json

if TYPE_CHECKING:
    from node.environments.base import Environment
    from node.tasks.records import TaskFolder
    from protocol.merging import Merge
    from protocol.run import Asset, EnvironmentSpec
    from protocol.tasks import Kind, Part, TaskSpec


def submit(directory: Path, draft: "TaskDraft") -> str:
    """Give a task to the daemon; its id, 64 hex digits. Raises CommandError in the daemon's words."""
    import msgspec

    # By path, not by content: the daemon is on this machine, and a data set may be gigabytes.
    files = {path: str(file.resolve()) for path, file in draft.files.items()}
    body = {"spec": msgspec.to_builtins(draft.spec), "policy": draft.policy, "files": files}
    return str(api.ask(api.socket_of(directory), "POST", "/tasks", msgspec.json.encode(body))["task"])


def own_tasks(directory: Path) -> list[dict[str, Any]]:
    """The tasks that this node offers, oldest first."""
    return list(api.ask(api.socket_of(directory), "GET", "/tasks")["tasks"])


def cancel(directory: Path, id: str) -> None:
    api.ask(api.socket_of(directory), "POST", f"/tasks/{id}/cancel")


def named(directory: Path, start: str) -> dict[str, Any]:
    """The task whose id begins so; the newest if nothing is said. Raises CommandError."""
    found = [task for task in own_tasks(directory) if task["id"].startswith(start.lower())]
    # An ambiguous beginning is refused, as cancelling the wrong task cannot be undone.
    if not found or (start and len(found) > 1):
        why = f"{len(found)} tasks have ids that begin with {start!r}" if start else "it has offered none"
        raise CommandError("no such task at this node", why, "look at: intellect-node task status", USAGE)
    return found[-1]


def wait(
    directory: Path, id: str, show: Callable[[dict[str, Any]], None], *, ask_seconds: float = 0.5
) -> dict[str, Any]:
    """What is told of a task once it is over. A daemon that starts again is waited for."""
    silent = 0.0
    while True:
        try:
            task = named(directory, id)
            silent = 0.0
        except CommandError as error:
            silent += ask_seconds
            # A guardian starts a daemon again within seconds; one that is away for a minute was stopped.
            if error.code != NETWORK or silent > 60:
                raise
        else:
            show(task)
            if not task["open"]:
                return task
        time.sleep(ask_seconds)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What every kind of task may be told. 0, or "" for the policy: what fits."""

    policy: str = "newest"
    samples: int = 1
    shard_size: int = 16
    max_output_tokens: int = 0
    temperature: float = 0.0
    lease: float = 120.0
    device: str = "any"
    nonce: str = ""

    def fields(self) -> dict[str, Any]:
        """Of a TaskSpec."""
        names = ("samples", "shard_size", "max_output_tokens", "temperature", "device", "nonce")
        return {name: getattr(self, name) for name in names} | {"lease_seconds": self.lease}


@dataclass(frozen=True, slots=True)
class TaskDraft:
    """spec: its policy left open; files: asset path -> file on this machine."""

    spec: "TaskSpec"
    policy: str
    files: dict[str, Path]


class TaskOffice:
    """What a node's state directory says of its run. Raises StateError where there is none."""

    def __init__(self, directory: Path) -> None:
        from node.inference.tokenizer import LocalTokenizer
        from node.state.reader import StateFiles

        self.files = StateFiles(directory)
        self.run, self.assets = self.files.run()
        if self.run.diloco is not None:
            raise CommandError(
                "there are no tasks in a run with rounds ([diloco])",
                "a task names a policy that the trainer announced, and here nobody announces any",
                "evaluate or merge at a desk: intellect-node eval --help, intellect-node weights merge --help",
                USAGE,
            )
        self.tokenizer = LocalTokenizer(self.assets / "model")

    def environment(self, spec: "EnvironmentSpec", assets: Path) -> "Environment":
        from node.environments.registry import load_environment

        return load_environment(spec, assets, self.tokenizer)


def of_own(bench: TaskOffice, kind: "Kind", part: "Part", first: int, problems: int, sizes: Sizes) -> TaskDraft:
    """A task over the run's own problems. problems: 0 for all of that part, where they have an end."""
    from node.inference.tasks import problems_in
    from protocol.tasks import TaskSpec

    with closing(bench.environment(bench.run.environment, bench.assets)) as environment:
        there = problems_in(environment, part)
    last = first + problems if problems else there
    if not first < last <= there:
        raise CommandError(
            "there are not so many problems",
            f"{part.replace('_', '-')} problems are numbered 0 to {there - 1}, asked for was {first} to {last - 1}",
            "give --problems, and --first where it should not be 0",
            USAGE,
        )
    return TaskDraft(TaskSpec(kind=kind, part=part, first=first, last=last, **sizes.fields()), sizes.policy, {})


def of_data(bench: TaskOffice, data: Path, template: str, sizes: Sizes, *, skip: bool = False) -> TaskDraft:
    """A filter over every row of a data set. skip: leave out rows that cannot be scored and count them."""
    import shutil
    import tempfile

    from node.environments.dataset import count_bad_rows
    from node.inference.tasks import problems_in
    from protocol.run import EnvironmentSpec
    from protocol.tasks import TaskSpec

    path = f"data/{'rows.parquet' if data.suffix == '.parquet' else 'rows.jsonl'}"
    asset = _asset(path, data)
    args: dict[str, Any] = {"path": path, "template": template}
    if skip:
        # The count is part of the task, so that a worker that skips other rows refuses it.
        args |= {"on_bad_row": "skip", "bad_rows": count_bad_rows(data, args)}
    environment = EnvironmentSpec(name="dataset", args=args)
    with tempfile.TemporaryDirectory(prefix="intellect-task-") as folder:
        place = Path(folder) / path
        place.parent.mkdir()
        # Under the name that workers will have it by: the environment reads by that path.
        shutil.copyfile(data, place)
        with closing(bench.environment(environment, Path(folder))) as loaded:
            rows = problems_in(loaded, "all")
    spec = TaskSpec(kind="filter", part="all", last=rows, environment=environment, assets=(asset,), **sizes.fields())
    return TaskDraft(spec, sizes.policy, {path: data})


def of_file(bench: TaskOffice, root: str, sizes: Sizes) -> TaskDraft:
    """A judgement of every answer in a rollout file that this node holds. root: 64 hex digits, or how they begin."""
    from node.errors import StateError
    from node.tasks.judging import judge_task
    from protocol.rollout import MAX_FILE_BYTES, decode
    from protocol.tasks import SUBJECT

    try:
        path = bench.files.blob(root)
    except StateError as error:
        what, remedy = "the file to judge is not here", "name the root of an accepted file"
        raise CommandError(what, error.why, remedy, RUN) from None
    # One byte more, so that a file that is too long is refused and not cut.
    data = path.read_bytes()[: MAX_FILE_BYTES + 1]
    spec = judge_task(bench.run, data, len(decode(data, 65_536).rows), **sizes.fields())
    return TaskDraft(spec, sizes.policy, {SUBJECT: path})


def of_package(package: Path, scratch: Path, sizes: Sizes, units: int) -> TaskDraft:
    """A review of a proposed environment package: a module, a directory or an archive. scratch: where it is packed.

    Raises SandboxError where this machine has no interpreter for it.
    """
    from node.environments.package.archive import pack, read_source
    from node.environments.package.manifest import read_manifest
    from node.environments.programs import sandbox_files
    from node.state.files import write_whole
    from protocol.tasks import COPIES, TaskSpec

    packed = scratch / "package.tar"
    source = read_source(package)
    write_whole(packed, pack(source))
    files = {"package.tar": packed, **sandbox_files(read_manifest(source).packages)}  # who has the rest fetches none
    assets = tuple(_asset(path, file) for path, file in files.items())
    fields = {"lease_seconds": sizes.lease, "nonce": sizes.nonce, "units": units}
    spec = TaskSpec(kind="review", last=1, copies=COPIES, subject=assets[0].root, assets=assets, **fields)
    return TaskDraft(spec, "", files)


def of_policies(models: list[str], base: str, rule: "Merge", sizes: Sizes, shard_size: int, units: int) -> TaskDraft:
    """A merge of policies, which the trainer's node finds by these names. Raises CommandError."""
    from protocol.tasks import MergeOrder, TaskSpec

    if rule.needs_base != bool(base):
        why = f"{rule.method} {'merges differences to one' if rule.needs_base else 'has none'}"
        raise CommandError("which base?", why, "give --base a policy for ties and dare, and only then", USAGE)
    order = MergeOrder(models=tuple(models), base=base, rule=rule)
    fields = {"lease_seconds": sizes.lease, "nonce": sizes.nonce, "units": units}
    return TaskDraft(TaskSpec(kind="merge", last=1, shard_size=shard_size, merge=order, **fields), "", {})


def with_model(draft: TaskDraft, model: Path) -> TaskDraft:
    """The same, answered by a model directory's weights. Raises CommandError, WeightsError."""
    import msgspec

    from node.run.file import describe_file
    from node.weights.export import weight_files
    from node.weights.images import mapped
    from protocol.policy import MalformedPolicy, decode_image
    from protocol.run import Asset
    from protocol.tasks import WEIGHTS

    remedy = "name a directory that `task merge` or `weights merge` wrote"
    files = weight_files(model)
    # One blob is what a task hands out: shards would be several with an order of their own.
    if len(files) != 1:
        raise CommandError(f"{model} cannot be evaluated", f"its weights are in {len(files)} files", remedy, RUN)
    try:
        # Here already: workers would refuse another form one by one.
        decode_image(mapped(files[0]))
    except MalformedPolicy as error:
        raise CommandError(f"{model} cannot be evaluated", error.why, remedy, RUN) from None
    root = describe_file(files[0]).root.hex()
    asset = Asset(path=WEIGHTS, root=root, size=files[0].stat().st_size)
    spec = msgspec.structs.replace(draft.spec, policy=root, assets=(*draft.spec.assets, asset))
    return TaskDraft(spec, "", {**draft.files, WEIGHTS: files[0]})


def _asset(path: str, file: Path) -> "Asset":
    from protocol.blobs import describe
    from protocol.run import Asset

    try:
        data = file.read_bytes()
    except OSError as error:
        raise CommandError(f"{file} cannot be read", str(error), "name a file that is there", RUN) from None
    return Asset(path=path, root=describe(data).root.hex(), size=len(data))


# what a finished task is made into, and how it is told: files for programs, lines for people


def make(
    directory: Path, folder: "TaskFolder", out: Path | None, data: Path | None, lowest: float, highest: float
) -> dict[str, Any]:
    """Make the collected results of a task what its kind asks for, in the file `out`, and say what they come to.

    directory: the node's state; data: what a filter reads, None for what the node keeps of it; lowest, highest: solve
    rates of the rows that it keeps.
    """
    import msgspec

    from node.state.reader import StateFiles
    from node.tasks import exports, findings

    spec, files = folder.spec(), StateFiles(directory)
    told = {"file": str(out) if out else None}
    if spec.kind == "generate" and out is not None:
        from node.inference.tokenizer import LocalTokenizer

        run, assets = files.run()
        rows = exports.write_generated(folder, LocalTokenizer(assets / "model"), out, run.environment, assets)
        return {"rows": rows, **told}
    if spec.kind == "filter" and out is not None:
        source = data or (files.blob(spec.assets[0].root) if spec.assets else None)
        return {**msgspec.to_builtins(exports.write_filtered(folder, source, out, lowest, highest)), **told}
    if spec.kind == "merge" and out is not None:
        from node.weights.merge import assemble

        root = assemble((file for _, file, _ in folder.results()), files.run()[1] / "model", out)
        return {"weights_root": root.hex(), **told}
    find = {"evaluate": findings.evaluate, "judge": findings.judgement, "review": findings.review}.get(spec.kind)
    if find is None:
        why = f"the trainer makes batches of what a task of kind {spec.kind} comes to"
        raise CommandError("nothing to collect", why, "look at: intellect-node task status", USAGE)
    found = find(folder)
    if out is not None:
        exports.write_json(out, found)
    return {**msgspec.to_builtins(found, str_keys=True), **told}


def tell(task: dict[str, Any], made: dict[str, Any], *, as_json: bool) -> None:
    """The end of a command that waited."""
    facts = {name: task.get(name) for name in ("id", "kind", "shards", "gathered", "taken_over", "seconds")}
    if as_json:
        print_json({"task": facts, "result": made})
        return
    taken = f", {task['taken_over']} taken over" if task.get("taken_over") else ""
    say = console().print
    say(f"{task['kind']} {task['id'][:8]}: {task['shards']} shards in {duration(task['seconds'])}{taken}")
    for name, value in made.items():
        if value not in (None, {}, ()):
            say(f"  {name.replace('_', ' ')}: {clean(_shown(value), 1000)}", soft_wrap=True)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_shown(one)}" for name, one in list(value.items())[:20])
    return str(value)


def complete(folder: "TaskFolder") -> None:
    """Raise CommandError for a task that was cancelled, or waits for results."""
    state, missing = folder.state(), folder.spec().shards - len(folder.done())
    if missing and state.closed is None:
        raise CommandError(
            "the task is not done", f"{missing} shards are missing", "wait: intellect-node task status", USAGE
        )
    if missing:
        raise CommandError("the task was cancelled", f"{missing} shards are missing", "ask for it again", USAGE)
