"""Everything before the first process plays: the start model, the keys that the pool names, the run, the pool.

Teaching the start model takes the longest, so the chain and the keys are made beside it.
"""

import json
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import trio
from rich.markup import escape

from cli.demo.cast import DemoOptions, Scene, cast, quorum_of
from cli.demo.chain import DemoChain
from cli.demo.supervise import Spawn, SupervisedProgram, run_to_end
from cli.demo.view import DemoView
from cli.keyring import NODE_KEY, node_password, open_node_key
from cli.pools import about_run
from cli.run import notes_of
from cli.run_template import render_run, with_real_paths
from node.state.files import write_whole

if TYPE_CHECKING:
    from node.run.file import RunFile
    from protocol.identity import Address, NodeKey
    from protocol.run import VerificationSpec

OWN_RUN = Path(__file__).with_name("sort.toml")
MEASURED_TOO = (Path(__file__).with_name("sort-avx2.toml"),)
"""What is honest on machines of other classes than OWN_RUN's: files with its [verification] alone."""


def write_run(options: DemoOptions, scene: Scene) -> "RunFile":
    """Write scene.run_file; returns what it says. Raises RunFileError for a user's file with mistakes."""
    from node.run.file import load_run_file
    from node.run.sources import pinned

    source = options.run_file or OWN_RUN
    run = load_run_file(source, options.sets)
    if options.run_file is not None:  # nodes that join take no name without its commit
        run = pinned(run, source.parent)
    recipe = msgspec.structs.replace(run.recipe, seed=options.seed, steps=options.steps or run.recipe.steps)
    if options.steps and options.run_file is None:
        # Whoever says how long to train is not stopped by the goal of a run that he did not write.
        recipe = msgspec.structs.replace(recipe, target_reward=None)
    run = msgspec.structs.replace(run, recipe=recipe)
    if options.run_file is not None:
        base = options.run_file.resolve().parent
        run = with_real_paths(run, base)
    scene.run_file.write_text(render_run(run), encoding="utf-8")
    return run


_KEYS = "intellect-node keys of a demo v1"
"""On a chain of its own, where they are worth nothing: everybody can make them."""
TOKEN = 10**18
FUND = 1000 * TOKEN
UNITS_PER_EPOCH = 10**9
"""What a pool pays for at most per epoch, all nodes together: what a thousand GPUs make in an hour at 270 tokens/s."""
ROLES = ("trainer", "validator")
"""Of those whom a pool names."""
EPOCH_SECONDS, WINDOW_SECONDS = 10, 20
"""So short that a demo of a minute is paid while it runs."""
# The lease outlasts a demo, so that it is a quorum's word of silence that ends the killed leader's term.
CHAIR_LEASE_SECONDS, CHAIR_GRACE_SECONDS = 600, 20
MEASURED = "--dtypes float32,bfloat16 --workers float32 --attentions sdpa --samples 128".split()
"""As the demo's run file was, with fewer samples."""


@dataclass(frozen=True, slots=True)
class DemoStage:
    """What the processes are told. target: the reward that ends the run, if one does."""

    profile: Path
    pool: int
    run_name: str
    target: float | None


async def prepare(
    options: DemoOptions, scene: Scene, chain: DemoChain, environment: dict[str, str], spawn: Spawn, view: DemoView
) -> DemoStage:
    """Bring everything to where `join` can start."""
    from contracts.bindings import PoolParams
    from node.chain.faucet import COIN_FOR_GAS, DevnetFaucet
    from node.run.file import compile_run, load_run_file
    from node.run.problems import check_run

    if options.resume:
        run = await trio.to_thread.run_sync(load_run_file, scene.run_file)
        pool = int(scene.pool_file.read_text(encoding="ascii"))
        view.say(f"going on with the run {run.name} in pool {pool}")
        return DemoStage(chain.profile, pool, run.name, run.recipe.target_reward)

    run = await trio.to_thread.run_sync(write_run, options, scene)
    addresses: dict[str, Address] = {}
    async with trio.open_nursery() as nursery:
        if options.run_file is None:
            nursery.start_soon(teach_and_measure, run, options, scene, environment, spawn, view)
        nursery.start_soon(_make_keys, options, scene, addresses)
    compiled = await trio.to_thread.run_sync(partial(compile_run, scene.run_file, reach="whole", on_progress=view.say))
    facts = await trio.to_thread.run_sync(check_run, compiled)
    for note in await trio.to_thread.run_sync(notes_of, compiled, facts):
        view.say(f"note: {escape(note)}")
    named = {role: tuple(addresses[one.name] for one in cast(options) if one.role == role) for role in ROLES}
    params = PoolParams(
        run_root=compiled.root,
        run_uri=about_run(compiled.spec),
        manager=addresses["trainer"],
        reward_per_unit=TOKEN // 1000,
        window=WINDOW_SECONDS,
        epoch_seconds=EPOCH_SECONDS,
        units_per_epoch=UNITS_PER_EPOCH,
        slash_amount=100 * TOKEN,
        validators=named["validator"],
        threshold=quorum_of(options.validators),
    )
    # An account of the moment: on a devnet anybody is given coin and tokens.
    account = key_of(options, "owner")
    await DevnetFaucet(chain.client).fund(account.address, coin=COIN_FOR_GAS, token=FUND)
    pool = await chain.client.create_pool(params, key=account)
    await chain.client.fund_pool(pool, FUND, key=account)
    if options.trainers > 1:
        await _seat(scene, chain, pool, named["trainer"])
    write_whole(scene.cast_file, msgspec.json.encode(options.casting))
    # Last: with it a demo counts as one that can go on.
    scene.pool_file.write_text(f"{pool}\n", encoding="ascii")
    view.say(f"pool {pool} is open for the run {run.name} ({compiled.root.hex()})")
    return DemoStage(chain.profile, pool, run.name, run.recipe.target_reward)


async def _seat(scene: Scene, chain: DemoChain, pool: int, trainers: "Sequence[Address]") -> None:
    """Who trains, in the order of their turn: the first, which manages the pool, leads."""
    from node.chain.faucet import COIN_FOR_GAS, DevnetFaucet

    manager = await trio.to_thread.run_sync(lambda: open_node_key(scene.state_dir("trainer")))
    # Its daemon, which would fund it, does not run yet, and this transaction needs gas.
    await DevnetFaucet(chain.client).fund(manager.address, coin=COIN_FOR_GAS)
    await chain.client.seat_trainers(pool, trainers, CHAIR_LEASE_SECONDS, CHAIR_GRACE_SECONDS, key=manager)


async def teach_and_measure(
    run: "RunFile", options: DemoOptions, scene: Scene, environment: dict[str, str], spawn: Spawn, view: DemoView
) -> None:
    """The start model and, for a machine of another class than the demo's run is calibrated for, what is honest on it:
    measured before, or now."""
    from node.preflight.engines import NAMES, judge_class, names_in

    look = SupervisedProgram(
        "the engine's look at this machine", NAMES, environment, scene.log("classes"), scene.directory
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_to_end, look, spawn)
        await teach_start_model(options, scene, environment, spawn, view)
    classes = names_in(look.log.read_bytes())
    for rules in (run.verification, *map(_rules_in, MEASURED_TOO)):
        if judge_class(rules, "worker", classes).level == "ok":
            run = msgspec.structs.replace(run, verification=rules)
            scene.run_file.write_text(render_run(run), encoding="utf-8")
            return
    view.say(f"measuring what is honest on this machine, about 30 s: nobody did for {classes[0]}")
    command = [sys.executable, "-m", "cli", "calibrate", "--run", str(scene.run_file), *MEASURED]
    log = scene.log("calibration")
    # After the start model: the calibration samples with it.
    await run_to_end(SupervisedProgram("the calibration", command, environment, log, scene.directory), spawn)


def _rules_in(path: Path) -> "VerificationSpec":
    from protocol.run import VerificationSpec

    return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8"))["verification"], VerificationSpec)


async def teach_start_model(
    options: DemoOptions, scene: Scene, environment: dict[str, str], spawn: Spawn, view: DemoView
) -> None:
    """A tiny model that solves the task now and then, so that there is something to reinforce."""
    view.say("teaching the start model by example, until it is right now and then (about 20 s)")
    command = [sys.executable, "-m", "node.training.warmstart", "--out", str(scene.model), "--seed", str(options.seed)]
    log = scene.log("start model")
    await run_to_end(SupervisedProgram("the start model", command, environment, log, scene.directory), spawn)
    accuracy = _last_accuracy(log)
    if accuracy is not None:
        view.say(f"the start model is right in {accuracy:.0%} of its tries")


def key_of(options: DemoOptions, name: str) -> "NodeKey":
    """Of who plays that part: its account and its peer identity. It follows from the seed, so that two demos of one
    seed have the same addresses, and draw alike. On a chain that runs already a demo of this seed may have been, and
    would be in the way."""
    from blake3 import blake3

    from protocol.identity import NodeKey

    if options.network is not None:
        return NodeKey.generate()
    return NodeKey(blake3(f"{options.seed} {name}".encode(), derive_key_context=_KEYS).digest())


async def _make_keys(options: DemoOptions, scene: Scene, addresses: "dict[str, Address]") -> None:
    from node.state.keystore import save_key

    def make(name: str) -> "NodeKey":
        directory = scene.state_dir(name)
        if not (directory / NODE_KEY).exists():
            save_key(directory / NODE_KEY, key_of(options, name), node_password(directory, None))
        return open_node_key(directory)

    for one in cast(options):
        addresses[one.name] = (await trio.to_thread.run_sync(make, one.name)).address


def _last_accuracy(log: Path) -> float | None:
    for line in reversed(log.read_text(encoding="utf-8", errors="replace").splitlines()):
        try:
            event = json.loads(line)
            return float(event["accuracy"])
        except (ValueError, KeyError, TypeError):
            continue
    return None
