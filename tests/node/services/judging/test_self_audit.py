"""A worker's own look at its file gives the validators' verdict and reason, and the command says so."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.main import main
from node.errors import RunFileError
from node.inference.engines import torch_engine
from node.inference.session import EngineSession
from node.inference.wire import Produce
from node.services.judging.self_audit import audit_file
from node.state.reader import StateFiles
from node.weights.policy_cache import HeldPolicy
from node.weights.records import PolicyRecords
from protocol.blobs import describe
from protocol.checks import Reason
from protocol.identity import NodeKey
from protocol.policy import PolicyManifest, decode_image, describe_tensors, encode_image, policy_root
from protocol.rollout import decode, encode
from protocol.run import RunSpec, encode_run
from protocol.statements import VerdictOutcome
from tests.cheats.own_problems import OwnProblems
from tests.node.inference.work import produced_by

NODE = NodeKey(b"\x07" * 32).address


def image_of(assets: Path, step: int = 0) -> tuple[Path, bytes]:
    image = assets / "model" / "model.safetensors"
    return image, policy_root(step, describe_tensors(decode_image(image.read_bytes())))


def made_by(kind: type[EngineSession], run: RunSpec, assets: Path, path: Path, step: int = 0) -> Path:
    image, root = image_of(assets, step)
    session = kind(run, assets, torch_engine)
    session.keep(root, str(image))
    produced_by(session, Produce(policy_root=root, node=NODE, pool=3, index=5, out_path=str(path)))
    session.close()
    return path


@pytest.fixture(scope="module")
def honest(tiny_assets: Path, tiny_run: RunSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_by(EngineSession, tiny_run, tiny_assets, tmp_path_factory.mktemp("audit") / "honest.arrow")


def test_an_honest_file_passes_and_every_group_was_recomputed(
    honest: Path, tiny_assets: Path, tiny_run: RunSpec
) -> None:
    seen = audit_file(honest, tiny_run, tiny_assets, image_of(tiny_assets)[0])
    assert seen.passed
    assert (seen.reason, seen.groups, seen.index, seen.node) == (Reason.NONE, 2, 5, NODE)
    assert "staleness" in seen.not_checked


def test_a_cheat_reads_the_reason_that_the_validators_would_sign(
    tiny_assets: Path, tiny_run: RunSpec, tmp_path: Path
) -> None:
    file = made_by(OwnProblems, tiny_run, tiny_assets, tmp_path / "cheat.arrow")
    seen = audit_file(file, tiny_run, tiny_assets, image_of(tiny_assets)[0])
    assert (seen.outcome, seen.reason) == (VerdictOutcome.SLASH, Reason.WRONG_DRAW)


def test_an_answer_to_another_challenge_is_not_fresh(
    honest: Path, tiny_assets: Path, tiny_run: RunSpec, tmp_path: Path
) -> None:
    batch = decode(honest.read_bytes(), 8)
    stale = tmp_path / "stale.arrow"
    stale.write_bytes(
        encode(msgspec.structs.replace(batch, header=msgspec.structs.replace(batch.header, freshness="00" * 32)))
    )
    seen = audit_file(stale, tiny_run, tiny_assets, image_of(tiny_assets)[0])
    assert (seen.outcome, seen.reason) == (VerdictOutcome.REJECT, Reason.FRESHNESS)


def test_garbage_is_malformed_and_another_policy_is_an_error(
    honest: Path, tiny_assets: Path, tiny_run: RunSpec, tmp_path: Path
) -> None:
    image, _ = image_of(tiny_assets)
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"\xff" * 1000)
    assert audit_file(garbage, tiny_run, tiny_assets, image).reason is Reason.MALFORMED
    other = tmp_path / "other.safetensors"
    tensors = dict(decode_image(image.read_bytes()))
    name = sorted(tensors)[0]
    tensors[name] = tensors[name] ^ 1
    other.write_bytes(encode_image(tensors))
    with pytest.raises(RunFileError, match="another policy"):
        audit_file(honest, tiny_run, tiny_assets, other)


def test_the_step_of_the_policy_is_found_among_those_of_the_run(
    tiny_assets: Path, tiny_run: RunSpec, tmp_path: Path
) -> None:
    """Weights that steps without signal left as they were: the file says which of the policies made it."""
    image, _ = image_of(tiny_assets)
    last = tiny_run.recipe.steps
    file = made_by(EngineSession, tiny_run, tiny_assets, tmp_path / "last.arrow", step=last)
    assert audit_file(file, tiny_run, tiny_assets, image).passed
    beyond = made_by(EngineSession, tiny_run, tiny_assets, tmp_path / "beyond.arrow", step=last + 1)
    with pytest.raises(RunFileError, match=f"at no step from 0 to {last}"):
        audit_file(beyond, tiny_run, tiny_assets, image)


def run_file(assets: Path, directory: Path) -> Path:
    path = directory / "run.toml"
    path.write_text(
        f"""
name = "tiny"
model = "{assets / "model"}"
[environment]
name = "sort"
args = {{ digits = 3, held_back = 64 }}
[rollout]
group_size = 4
prompts_per_step = 4
prompts_per_file = 2
max_prompt_tokens = 8
max_output_tokens = 40
[recipe]
steps = 7
[verification]
toploc_k = 32
[audit]
trust = "optimistic"
"""
    )
    return path


def test_the_command_ends_with_the_documented_codes(
    honest: Path, tiny_assets: Path, tmp_path: Path, capsys: Any
) -> None:
    run = run_file(tiny_assets, tmp_path)
    assert main(["audit", str(honest), "--run", str(run), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["passed"], told["reason_name"], told["outcome_name"]) == (True, "none", "accept")
    broken = tmp_path / "broken"
    broken.write_bytes(honest.read_bytes()[:300])
    assert main(["audit", str(broken), "--run", str(run)]) == 6
    assert "malformed" in capsys.readouterr().out
    assert main(["audit", str(tmp_path / "missing"), "--run", str(run), "--json"]) == 3


def keep_record(state: Path, image: bytes) -> None:
    """What a node writes when it holds a policy: here the one of step 0."""
    infos = describe_tensors(decode_image(image))
    root = policy_root(0, infos)
    manifest = PolicyManifest(b"r" * 32, 0, root, infos, describe(image).root, len(image))
    PolicyRecords(state / "weights" / "held").write(HeldPolicy(0, root, state, manifest), keep=4)


def test_a_nodes_state_directory_is_enough(
    honest: Path, tiny_assets: Path, tiny_run: RunSpec, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a daemon leaves there: the run as a blob, its assets, policies and rollouts among other blobs."""
    encoded = encode_run(tiny_run)
    root = describe(encoded).root.hex()
    store = tmp_path / "blobs" / "complete"
    store.mkdir(parents=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / root[:16]).symlink_to(tiny_assets, target_is_directory=True)
    image = image_of(tiny_assets)[0].read_bytes()
    canonical = encode_image(decode_image(image))
    rollout = honest.read_bytes()
    for data in (encoded, canonical, rollout):
        (store / describe(data).root.hex()).write_bytes(data)
        (store / f"{describe(data).root.hex()}.info").write_bytes(b"piece list")
    assert main(["audit", describe(rollout).root.hex(), "--state-dir", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"]
    keep_record(tmp_path, canonical)
    with monkeypatch.context() as patched:
        patched.delattr(StateFiles, "policy")  # the record says where the image is: nothing is hashed to find it
        assert main(["audit", describe(rollout).root.hex(), "--state-dir", str(tmp_path), "--json"]) == 0
    (store / describe(canonical).root.hex()).unlink()
    assert main(["audit", describe(rollout).root.hex(), "--state-dir", str(tmp_path)]) == 3
    assert main(["audit", str(honest)]) == 2
