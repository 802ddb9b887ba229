"""`intellect-node weights`: the policies of a run, as files: what is held here, fetched, checked, exported, merged.

None of it needs a stake or a running daemon.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from cli.errors import CONFIGURATION, RUN, USAGE, CommandError
from cli.options import Density, Method, Scale, Seed, Weight, numbers_of
from cli.output import AsJson, clean, console, print_json, quiet_logs, short
from cli.places import NetworkName, PoolNumber, running_directories, state_dir_option
from node.units import size_of

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from cli.weights_serve import Fetched, Place
    from node.blobs.headway import BlobProgress
    from node.chain.client import ChainClient
    from node.inference.layers import LayeredImage
    from node.light_client import LightClient
    from node.swarm.terms import LeaderTerms
    from node.weights.export import Exported
    from node.weights.gguf import GgufPlan
    from node.weights.policy_cache import HeldPolicy
    from node.weights.records import PolicyRecord

app = typer.Typer(
    no_args_is_help=True, help="The policies of a run, as files: list, fetch, verify, export, merge, serve."
)

StateDir = Annotated[Path | None, state_dir_option("The node's state directory; default: all of this machine.")]
Shard = Annotated[float, typer.Option(min=0.001, help="Largest weight file, GB.")]


@app.command(
    "list",
    epilog="Examples:  intellect-node weights list   |   intellect-node weights list --state-dir ~/nodes/a --json",
)
def list_(state_dir: StateDir = None, as_json: AsJson = False) -> None:
    """Show the policies that the nodes of this machine hold: step, root, size, what its patch cost."""
    rows = [_row(directory, record) for directory, record in _held(state_dir)]
    if as_json:
        print_json({"policies": rows})
        return
    if not rows:
        console().print("no policies are held here")
        return
    from rich.table import Table

    table = Table(box=None, header_style="dim", padding=(0, 2), show_edge=False)
    for name in ("step", "policy", "image", "patch", "snapshot", "here"):
        table.add_column(name, justify="left" if name in ("policy", "here") else "right", overflow="fold")
    for row in rows:
        patch = row["patch_bytes"]
        table.add_row(
            str(row["step"]),
            row["policy_root"],
            size_of(row["image_bytes"]),
            f"{size_of(patch)} ({100 * patch / row['image_bytes']:.2f} %)" if patch else "-",
            str(row["snapshot_step"]),
            "yes" if row["path"] else "no",
        )
    console().print(table)


@app.command(
    "fetch",
    epilog="Examples:  intellect-node weights fetch --out my-model --network base-sepolia.toml --pool 7   |   "
    "intellect-node weights fetch --out step-40 --step 40 --network local   |   "
    "intellect-node weights fetch --out models --follow --network local",
)
def fetch(
    out: Annotated[Path, typer.Option(help="The model directory to make; it must not exist, but with --follow.")],
    network: NetworkName = None,
    pool: PoolNumber = None,
    step: Annotated[int | None, typer.Option(min=0, help="Which policy; default: the newest.")] = None,
    source: Annotated[
        list[str] | None, typer.Option(help="A gateway to ask first: http(s)://HOST:PORT[#sha256=..]. Repeatable.")
    ] = None,
    only_http: Annotated[
        bool, typer.Option("--only-http", help="Ask the gateways of --source alone, and the chain: no member.")
    ] = False,
    shard: Shard = 5.0,
    cache: Annotated[
        Path | None, typer.Option(help="Where blobs are kept for the next time. Default: this user's cache.")
    ] = None,
    quota: Annotated[float, typer.Option(min=0.001, help="Room for blobs, GB.")] = 200.0,
    follow: Annotated[
        bool, typer.Option("--follow", help="Stay until the run's last step: OUT/newest leads to the newest model.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch a policy from a pool's members without joining: no stake, no key of yours, nothing said.

    The result is a model directory as Hugging Face and vLLM load it, checked against what the trainer signed. What was
    fetched before an interruption is not fetched again.
    """
    from cli.weights_serve import follow as follow_newest
    from node.blobs.http.sources import parse_source
    from node.light_client import LightClient

    if follow and step is not None:
        why = "--follow is about the newest policy, --step about one"
        raise CommandError("which policy?", why, "leave --step out, or --follow", USAGE)
    if only_http and not source:
        why = "--only-http asks the gateways of --source, and none was given"
        raise CommandError("whom to ask?", why, "give --source http(s)://HOST:PORT[#sha256=..]", USAGE)
    if not follow:
        _must_not_exist(out)
    profile, number = _profile(network, pool)
    sources = [parse_source(text, private=True) for text in source or ()]
    directory = cache or _cache() / f"{profile.name}-{number}"
    with quiet_logs(), _bars(as_json) as bars:
        view = _Transfers(bars)
        room = int(quota * 1e9)
        client = LightClient(
            profile, number, directory, quota=room, sources=sources, alone=only_http, report=view.report
        )

        def fetch_to(place: "Place") -> "Fetched":
            return _fetch_to(client, step, place, view, int(shard * 1e9), as_json)

        if follow:
            follow_newest(out, fetch_to, lambda text: typer.echo(clean(text, 400), err=True))
        else:
            fetch_to(lambda _: out)


def _fetch_to(
    client: "LightClient", step: int | None, place: "Place", view: "_Transfers", shard_bytes: int, as_json: bool
) -> "Fetched":
    """One snapshot, and the model where `place` wants it."""
    import trio

    from cli.weights_serve import Fetched
    from node.weights.export import export_model
    from node.weights.records import PolicyRecord

    snapshot = trio.run(client.fetch, step)
    policy, bars = snapshot.policy, view.bars
    fetched = Fetched(policy.step, policy.step >= snapshot.run.recipe.steps)
    # After the fetch: only then is it known which step the newest is.
    out = place(policy.step)
    if out is None:
        return fetched
    record = PolicyRecord(policy.announcement, policy.manifest_root, policy.manifest)
    task = bars.add_task("writing", total=policy.manifest.image_size, peers="")
    exported = export_model(
        policy.image(),
        record,
        snapshot.assets,
        out,
        shard_bytes=shard_bytes,
        on_progress=lambda count: bars.advance(task, count),
    )
    bars.remove_task(task)
    _show_export(exported, as_json, trainer=snapshot.trainer, fetched_bytes=view.fetched, run=snapshot.run.name)
    return fetched


@app.command(
    "verify",
    epilog="Examples:  intellect-node weights verify my-model --network base-sepolia.toml --pool 7   |   "
    "intellect-node weights verify --state-dir ~/nodes/a   |   "
    "intellect-node weights verify model.safetensors --root ab12..",
)
def verify(
    path: Annotated[
        Path | None, typer.Argument(help="A model directory or .safetensors file; default: what the nodes here hold.")
    ] = None,
    state_dir: StateDir = None,
    root: Annotated[str | None, typer.Option(help="The policy root that it must have (64 hex digits).")] = None,
    network: NetworkName = None,
    pool: PoolNumber = None,
    as_json: AsJson = False,
) -> None:
    """Hash every tensor and compare with what the trainer signed; with --network, check that he is the pool's trainer.

    Exit code 6 if anything differs.
    """
    signer = _Signer(network, pool) if network is not None else None
    if path is not None:
        results = [_verify_path(path, root, signer, as_json)]
    elif root is not None:
        raise CommandError("which weights?", "--root was given without a path", "name a directory or a file", USAGE)
    else:
        results = [_verify_held(directory, record, signer, as_json) for directory, record in _held(state_dir)]
    if as_json:
        print_json({"verified": results})
        return
    for result in results:
        signed = f"signed by {result['signer']}" if result["signer"] else "signature not checked (give --network)"
        step = f"step {result['step']}  " if result["step"] is not None else ""
        console().print(f"good  {step}{result['policy_root']}  {signed}", soft_wrap=True)
    if not results:
        console().print("no policies are held here")


@app.command(
    "export",
    epilog="Examples:  intellect-node weights export my-model   |   "
    "intellect-node weights export step-40 --step 40 --state-dir ~/nodes/a --shard 2   |   "
    "intellect-node weights export step-20 --trained runs/my-run --step 20 --gguf q8_0",
)
def export(
    out: Annotated[Path, typer.Argument(help="The model directory to make; it must not exist.")],
    step: Annotated[int | None, typer.Option(min=0, help="Which policy; default: the newest that is held.")] = None,
    state_dir: StateDir = None,
    trained: Annotated[
        Path | None, typer.Option(help="A directory of `train` instead: what it holds, and its milestones.")
    ] = None,
    shard: Shard = 5.0,
    gguf: Annotated[
        str | None, typer.Option(help="Also one file for llama.cpp and others, in numbers of: bf16, f16, q8_0.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a policy that a node of this machine holds as a model directory for Hugging Face, vLLM, ollama and others.

    GGUF is written of Llama, Mistral, Qwen2, Qwen3, SmolLM3 and OLMo2 whose tokenizers are byte-level.
    """
    from node.weights.export import export_model

    _must_not_exist(out)
    check_kind(gguf)
    if trained is not None:
        if state_dir is not None:
            raise CommandError("which policies?", "--trained and --state-dir name two places", "give one", USAGE)
        _export_trained(out, trained, step, gguf, as_json)
        return
    # A record may outlive its image, which the store evicts when it is full.
    held = [(d, r) for d, r in _held(state_dir) if _at_rest(d, r) and step in (None, r.manifest.step)]
    if not held:
        raise CommandError(
            "no such policy is held here" if step is not None else "no policy is held here",
            "no node of this machine has its image",
            "intellect-node weights list shows what is here; weights fetch asks the swarm",
            RUN,
        )
    directory, record = max(held, key=lambda entry: entry[1].manifest.step)
    assets = _assets(directory, record)
    plan = planned(next(iter(assets.values())).parent, gguf) if assets else None
    with _bars(as_json) as bars:
        task = bars.add_task("writing", total=record.manifest.image_size, peers="")
        exported = export_model(
            _image(directory, record),
            record,
            assets,
            out,
            shard_bytes=int(shard * 1e9),
            on_progress=lambda count: bars.advance(task, count),
        )
    _show_export(exported, as_json, **for_others(out, plan, gguf, out.name))


@app.command(
    "merge",
    epilog="Examples:  intellect-node weights merge both runs/a/model runs/b/model   |   "
    "intellect-node weights merge m a b c --weight 2 --weight 1 --weight 1   |   "
    "intellect-node weights merge m a b --method ties --base start --density 0.2   |   "
    "intellect-node weights merge m a b --method dare --base start --density 0.1 --seed 7 --json   |   "
    "intellect-node weights merge whole models/base --adapter runs/sums@20",
)
def merge(
    out: Annotated[Path, typer.Argument(help="The model directory to make; it must not exist.")],
    models: Annotated[list[Path], typer.Argument(help="Model directories or .safetensors files of one shape.")],
    adapter: Annotated[
        str | None,
        typer.Option(help="An adapter to put into the one model: PEFT's directory, or RUN@STEP of `train`."),
    ] = None,
    method: Method = "average",
    base: Annotated[
        Path | None, typer.Option(help="The model that all came from: ties and dare merge the differences to it.")
    ] = None,
    weight: Weight = None,
    density: Density = 0.5,
    scale: Scale = 1.0,
    seed: Seed = 0,
    threads: Annotated[int | None, typer.Option(min=1, max=256, help="Threads. Default: by size, up to 8.")] = None,
    as_json: AsJson = False,
) -> None:
    """Merge policies into one, tensor by tensor. The same inputs and numbers give the same bytes on every machine."""
    from node.weights.export import weight_files
    from node.weights.merge import merge_models

    _must_not_exist(out)
    if adapter is not None:
        _merge_adapter(out, models, adapter, as_json)
        return
    numbers = numbers_of(method, len(models), weight, density, scale, seed)
    with _bars(as_json) as bars:
        task = bars.add_task("merging", total=sum(file.stat().st_size for file in weight_files(models[0])), peers="")
        found = merge_models(
            numbers, models, out, base=base, workers=threads, on_progress=lambda count: bars.advance(task, count)
        )
    if as_json:
        inputs = [root.hex() for root in found.inputs]
        result = {"directory": str(out), "method": method, "weights_root": found.root.hex(), "inputs": inputs}
        print_json({**result, "tensors": found.tensors, "bytes": found.size})
        return
    console().print(
        f"{method} of {len(models)} models, weights {found.root.hex()}: {size_of(found.size)} in {found.tensors} "
        f"tensors, {clean(str(out), 400)}",
        soft_wrap=True,
    )


def _merge_adapter(out: Path, models: list[Path], adapter: str, as_json: bool) -> None:
    from cli.evaluate import beside_of
    from cli.run import require_training
    from node.weights.merge import merge_adapter

    if len(models) != 1:
        raise CommandError(f"an adapter to {len(models)} models?", "it is to one", "name its model alone", USAGE)
    require_training("an adapter is merged by torch, which is not installed", "install")
    ((name, source),) = beside_of([adapter], models[0]).items()
    found = merge_adapter(models[0], source, out)
    if as_json:
        print_json({"directory": str(out), "method": "adapter", "weights_root": found.root.hex(), "adapter": name})
        return
    console().print(
        f"{clean(name, 200)} in {clean(str(models[0]), 200)}, weights {found.root.hex()}: {size_of(found.size)}, "
        f"{clean(str(out), 400)}",
        soft_wrap=True,
    )


def check_kind(gguf: str | None) -> None:
    from node.weights.gguf import KINDS

    if gguf is not None and gguf not in KINDS:
        raise CommandError(f"--gguf {gguf}", f"it is one of {', '.join(KINDS)}", "for example --gguf q8_0", USAGE)


def planned(model: Path, gguf: str | None) -> "GgufPlan | None":
    """Before anything is written: what cannot be a GGUF file is refused."""
    from cli.run import require_training
    from node.weights import gguf as of_weights

    if gguf is None:
        return None
    require_training("a model's description is read by torch, which is not installed", "install")
    return of_weights.planned(model)


def for_others(out: Path, plan: "GgufPlan | None", gguf: str | None, name: str) -> dict[str, Any]:
    """What llama.cpp and ollama read of an exported model; which files they are. name: of the GGUF file."""
    from node.inference.weight_files import has_weights
    from node.weights.gguf import modelfile, write_gguf

    if not has_weights(out):
        if plan is not None:
            why = "an adapter was exported alone: the model that it belongs to is not here"
            raise CommandError("no GGUF was written", why, "weights merge OUT MODEL --adapter DIR, where MODEL is", RUN)
        return {}
    found: dict[str, Any] = {}
    if plan is not None:
        found["gguf"] = f"{name}-{gguf}.gguf"
        with _bars(as_json=False) as bars:
            task = bars.add_task(found["gguf"], total=sum(2 * math.prod(s) for s in plan.names.values()), peers="")
            write_gguf(plan, out, out / found["gguf"], cast(Any, gguf), lambda count: bars.advance(task, count))
    if line := modelfile(out, found.get("gguf")):
        (out / "Modelfile").write_text(line, encoding="utf-8")
        found["modelfile"] = "Modelfile"
    return found


def _export_trained(out: Path, trained: Path, step: int | None, gguf: str | None, as_json: bool) -> None:
    from cli.demo.report import copy_model
    from node.training.spool import image_of

    chosen, image = image_of(trained / "spool", step)
    plan = planned(trained / "spool" / "assets" / "model", gguf)
    copy_model(trained / "spool", out, chosen)
    more = for_others(out, plan, gguf, out.name)
    if as_json:
        print_json({"directory": str(out), "step": chosen, "bytes": image.stat().st_size, **more})
        return
    console().print(f"step {chosen}: {size_of(image.stat().st_size)}, {clean(str(out), 400)}", soft_wrap=True)


# what is here


def _state_dirs(given: Path | None) -> list[Path]:
    """The state directories to look at: the given one, or all that this user's nodes and daemons have."""
    from node.config import default_home

    if given is not None:
        if not given.is_dir():
            raise CommandError(f"no state directory {given}", "there is no such directory", "check the path")
        return [given]
    # Those that do not run, too: their policies are as good.
    found = {path.parent.parent for path in default_home().glob("nodes/*/*/weights/held")}
    return sorted(found.union(running_directories()))


def _held(state_dir: Path | None) -> "Iterator[tuple[Path, PolicyRecord]]":
    """(state directory, record) of every policy that is held here."""
    from node.weights.records import PolicyRecords

    for directory in _state_dirs(state_dir):
        for record in PolicyRecords(directory / "weights" / "held").read():
            yield directory, record


def _at_rest(directory: Path, record: "PolicyRecord") -> "HeldPolicy | None":
    """The policy as the node keeps it; None where it does not any more."""
    from node.weights.records import find_held

    return find_held(directory, record)


def _image(directory: Path, record: "PolicyRecord") -> "LayeredImage":
    held, step = _at_rest(directory, record), record.manifest.step
    if held is None:
        raise CommandError(f"the policy of step {step} is not here any more", "the node let it go", "try again", RUN)
    return held.image()


def _assets(directory: Path, record: "PolicyRecord") -> dict[str, Path]:
    """The model's other files as the node obtained them with its run."""
    model = directory / "run" / record.manifest.run_root.hex()[:16] / "model"
    files = (path for path in model.rglob("*") if path.is_file())
    return {
        path.relative_to(model).as_posix(): path
        for path in files
        # Not the first weights, nor their index: the export writes its own of the policy.
        if path.suffix != ".safetensors" and not path.name.endswith((".safetensors.index.json", ".partial"))
    }


def _row(directory: Path, record: "PolicyRecord") -> dict[str, Any]:
    manifest = record.manifest
    held = _at_rest(directory, record)
    return {
        "step": manifest.step,
        "policy_root": manifest.policy_root.hex(),
        "run_root": manifest.run_root.hex(),
        "tensors": len(manifest.tensors),
        "image_bytes": manifest.image_size,
        "patch_bytes": manifest.patches[-1].size if manifest.patches else 0,
        "patches": len(manifest.patches),
        "snapshot_step": manifest.snapshot.step if manifest.snapshot else manifest.step,
        "state_dir": str(directory),
        "path": str(held.path) if held else None,
        "patches_at_rest": len(held.patches) if held else 0,
    }


# checking


class _Signer:
    """Checks announcements against the chain: who may announce policies of a pool."""

    def __init__(self, network: str, pool: int | None) -> None:
        from cli.contract.frame import read
        from protocol.statements import Domain

        profile, self.pool = _profile(network, pool)
        self.domain: Domain = Domain(profile.chain_id, profile.contracts.swarm)
        self.terms = read(network, self._ask)

    async def _ask(self, chain: "ChainClient") -> "LeaderTerms":
        from node.swarm.terms import LeaderTerms

        terms = LeaderTerms((await chain.pool(self.pool)).manager, time.monotonic)
        await terms.ask_who_leads(chain, self.pool)
        await terms.ask_who_led(chain, self.pool)
        return terms

    def check(self, record: "PolicyRecord") -> str:
        """The signer's address. Raises IntellectError unless it led the pool then and names this policy."""
        from protocol.errors import ProtocolError
        from protocol.messages import PolicyAnnounced, open_envelope

        signed = open_envelope(self.domain, self.pool, record.announcement)
        message, manifest = signed.message, record.manifest
        # A good signature alone says little: the author must be whom the chain names, and the message about policies.
        if not isinstance(message, PolicyAnnounced) or not self.terms.counts(
            signed.author, message.term, message.step, message.parent
        ):
            raise ProtocolError("not signed by who led the pool then", f"by {signed.author}", "do not use it")
        # Else an announcement of an early step could be laid beside the weights of a later one.
        if (message.step, message.policy_root) != (manifest.step, manifest.policy_root):
            raise ProtocolError("the signature is for another policy", f"for step {message.step}", "do not use it")
        return signed.author


def _verify_path(path: Path, root: str | None, signer: _Signer | None, as_json: bool) -> dict[str, Any]:
    from node.weights.export import verify_directory, weight_files

    if not path.exists():
        raise CommandError(f"nothing at {path}", "there is no such file or directory", "check the path", RUN)
    total = sum(file.stat().st_size for file in weight_files(path))
    with _bars(as_json) as bars:
        task = bars.add_task("hashing", total=total, peers="")
        weights, record = verify_directory(path, on_progress=lambda count: bars.advance(task, count))
    step, found = _named(path, weights, record, root)
    signed = signer.check(record) if signer and record else None
    return {"path": str(path), "step": step, "policy_root": found, "signer": signed}


def _named(path: Path, weights: bytes, record: "PolicyRecord | None", root: str | None) -> tuple[int, str]:
    """Step and root of the policy that a path is: those of its record, or the root that was given and the step at which
    its weights have it. Raises CommandError if it is another policy than that, or nothing says which it should be."""
    from protocol.policy import find_step

    wanted = root.lower().removeprefix("0x") if root else None
    if record is not None and wanted in (None, record.manifest.policy_root.hex()):
        return record.manifest.step, record.manifest.policy_root.hex()
    if record is not None:
        why = f"its root is {record.manifest.policy_root.hex()}"
        raise CommandError(f"{path} is another policy", why, "fetch it again", RUN)
    if wanted is None:
        raise CommandError(
            f"{path} says nothing of its origin",
            "weights do not say of which policy they are, and there is no record beside them to compare with",
            "give the policy root that it must have with --root",
            RUN,
        )
    # Steps that are tried to find the one at which a file without a record has the root that was given: about a second.
    most_steps = 1_000_000
    step = find_step(wanted, weights, most_steps)
    if step is None:
        why = f"its weights are not that policy at any step up to {most_steps:,}"
        raise CommandError(f"{path} is another policy", why, "fetch it again", RUN)
    return step, wanted


def _verify_held(directory: Path, record: "PolicyRecord", signer: _Signer | None, as_json: bool) -> dict[str, Any]:
    from node.weights.export import describe_tensors
    from protocol.policy import MalformedPolicy

    image, manifest = _image(directory, record), record.manifest
    with _bars(as_json) as bars:
        task = bars.add_task(f"step {manifest.step}", total=manifest.image_size, peers="")
        infos = describe_tensors(image, on_progress=lambda count: bars.advance(task, count))
    if infos != manifest.tensors:
        what = f"the policy of step {manifest.step} is damaged"
        raise MalformedPolicy(what, f"{image.base} and its patches are not what was signed for")
    signed = signer.check(record) if signer else None
    return {"path": str(image.base), "step": manifest.step, "policy_root": manifest.policy_root.hex(), "signer": signed}


# small things


def _profile(network: str | None, pool: int | None) -> Any:
    """The network's profile and the pool's number."""
    from node.chain.profile import load_profile
    from node.config import default_home

    profile = load_profile(network or "local", home=default_home())
    number = pool if pool is not None else profile.pool
    if number is None:
        raise CommandError("which pool?", "neither --pool nor the network profile names one", "give --pool N", USAGE)
    return profile, number


def _must_not_exist(out: Path) -> None:
    # Refused before anything is fetched: hours later would be the wrong moment to find it.
    if out.exists():
        raise CommandError(f"{out} exists", "a model directory is written whole", "name another one", CONFIGURATION)


def _cache() -> Path:
    from node.places import default_cache

    return default_cache() / "policies"


def _show_export(exported: "Exported", as_json: bool, **more: Any) -> None:
    result = {
        "directory": str(exported.directory),
        "step": exported.step,
        "policy_root": exported.root.hex(),
        "files": list(exported.files),
        "bytes": exported.size,
        **more,
    }
    if as_json:
        print_json(result)
        return
    count = len(exported.files)
    files = "one file" if count == 1 else f"{count} files"
    trainer = f", signed by {short(more['trainer'])}" if "trainer" in more else ""
    console().print(
        f"step {exported.step}, policy {exported.root.hex()}{trainer}: {size_of(exported.size)} in {files}, "
        f"{clean(str(exported.directory), 400)}",
        soft_wrap=True,
    )


@contextmanager
def _bars(as_json: bool) -> "Iterator[Bars]":
    """Progress bars on standard error: bytes, rate, peers, time left; none where nobody looks."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    out = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.fields[peers]}"),
        TimeRemainingColumn(),
        console=out,
        disable=as_json or not out.is_terminal,
        transient=True,
    ) as bars:
        yield bars


class _Transfers:
    """One bar per blob that takes more than a moment."""

    def __init__(self, bars: "Bars") -> None:
        self.bars = bars
        self._tasks: dict[bytes, Any] = {}
        self._done: dict[bytes, int] = {}

    @property
    def fetched(self) -> int:
        """Bytes of all blobs that arrived."""
        return sum(self._done.values())

    def report(self, progress: "BlobProgress") -> None:
        self._done[progress.root] = progress.done
        peers = f"{progress.peers} peer{'s' if progress.peers != 1 else ''}"
        if progress.root not in self._tasks:
            name = f"fetching {progress.root.hex()[:8]}"
            self._tasks[progress.root] = self.bars.add_task(name, total=progress.size, peers=peers)
        self.bars.update(self._tasks[progress.root], completed=progress.done, total=progress.size, peers=peers)
