"""Rollouts of a model with experts: honest ones are accepted whoever made them, and a worker that lets other experts
compute than routers choose is found."""

import functools
import json
import shutil
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from node.inference.engines import torch_engine
from node.inference.errors import EngineError
from node.inference.model_files import read_json
from node.inference.session import EngineSession
from node.inference.settings import EngineSettings
from node.inference.torch_engine import bf16_bits
from node.recipe.join import join
from protocol import rollout
from protocol.checks import Reason
from protocol.policy import encode_image
from protocol.rollout import RolloutBatch, SampleRow, decode, decode_report, encode
from protocol.run import RunSpec
from protocol.statements import VerdictOutcome
from tests.attacks.test_worker_attacks import HONEST, judge, open_session, submit
from tests.cheats.catalogue import Cheat
from tests.cheats.experts import HalfOfTheExperts, OthersNamed

ROUTED = frozenset({Reason.ROUTING})


@pytest.fixture(scope="module")
def routed(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same tokenizer, with two layers of six experts and random weights."""
    own = tmp_path_factory.mktemp("routed") / "assets"
    shutil.copytree(assets / "model", own / "model")
    vocabulary = read_json(own / "model" / "config.json")["vocab_size"]
    config = Qwen3MoeConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        eos_token_id=1,
    )
    (own / "model" / "config.json").write_text(json.dumps(config.to_dict()))
    model, random = AutoModelForCausalLM.from_config(config), torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(parameter.shape, generator=random) * (0.1 if parameter.dim() > 1 else 0.0)
        + (parameter.dim() == 1)
        for name, parameter in model.named_parameters()
    }
    image = encode_image({name: bf16_bits(tensor) for name, tensor in sorted(weights.items())})
    (own / "images").mkdir()
    for place in (own / "model" / "model.safetensors", own / "images" / "0"):
        place.write_bytes(image)
    return own


@pytest.fixture
def root(roots: list[bytes]) -> list[bytes]:
    return roots[:1]


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_honest_work_is_accepted_and_learnt_from(
    run: RunSpec, turns_run: RunSpec, routed: Path, root: list[bytes], tmp_path: Path, turns: bool, dtype: str
) -> None:
    run = turns_run if turns else run
    if dtype == "bfloat16":
        run = in_bfloat16(run)
    make = functools.partial(torch_engine, settings=EngineSettings(dtype=dtype))
    worker = EngineSession(run, routed, make)
    worker.keep(root[0], str(routed / "images" / "0"))
    made = Cheat("nothing", frozenset(), lambda *_: worker)  # type: ignore[arg-type]
    produced = submit(made, run, routed, root, tmp_path)
    seen = judge(open_session(EngineSession, run, routed, root), root, produced)
    assert (seen.outcome, seen.detail) == (VerdictOutcome.ACCEPT, "")
    assert seen.statistics["routing"] < (1e-4 if dtype == "float32" else 0.5)
    assert 0 < seen.statistics["busiest_expert"] <= 1 and 0 <= seen.statistics["idle_experts"] < 1
    batch = decode(Path(produced.path).read_bytes(), 16)
    report = decode_report(Path(seen.report_path).read_bytes(), 16)
    (first, *_) = join(run, bytes.fromhex(report.header.file_root), 0, batch, report)
    assert [row.experts for row in first.rows] == [row.experts for row in batch.rows if row.group == first.key[1]]
    assert all(len(row.experts) == 4 * row.fed for row in first.rows)


def in_bfloat16(run: RunSpec) -> RunSpec:
    """Cuts as wide as calibration finds them for it."""
    wide = {
        "mantissa_mean": 8.0,
        "mantissa_median": 8.0,
        "sampling_mean": 0.01,
        "sampling_outside": 0.3,
        "routing": 0.5,
    }
    return msgspec.structs.replace(run, verification=msgspec.structs.replace(run.verification, **wide))


def with_routing(run: RunSpec, margin: float) -> RunSpec:
    return msgspec.structs.replace(run, verification=msgspec.structs.replace(run.verification, routing=margin))


@pytest.mark.parametrize("kind", [HalfOfTheExperts, OthersNamed])
def test_other_experts_than_the_routers_are_found(
    run: RunSpec, routed: Path, root: list[bytes], tmp_path: Path, kind: type[EngineSession]
) -> None:
    made = submit(Cheat("other experts", ROUTED, kind), run, routed, root, tmp_path)
    seen = judge(open_session(EngineSession, run, routed, root), root, made)
    assert (seen.outcome, seen.reason) == (VerdictOutcome.REJECT, Reason.ROUTING), seen.detail
    assert "times less likely" in seen.detail and seen.group >= 0
    blind = judge(open_session(EngineSession, with_routing(run, 1e3), routed, root), root, made)
    if kind is HalfOfTheExperts:
        assert blind.outcome == VerdictOutcome.ACCEPT, "nothing else shows it: all of it fits together"
    else:
        assert blind.reason in (Reason.ACTIVATIONS, Reason.SAMPLING)


def test_a_record_that_is_none_is_a_fault_of_form(
    run: RunSpec, routed: Path, assets: Path, root: list[bytes], tmp_path: Path
) -> None:
    made = submit(HONEST, run, routed, root, tmp_path)
    honest = decode(Path(made.path).read_bytes(), 16)
    validator = open_session(EngineSession, run, routed, root)
    row, *rest = honest.rows
    swapped = bytes([*row.experts[4:8], *row.experts[:4], *row.experts[8:]])
    other = bytes([*([0, 1] if row.experts[:2] != b"\0\1" else [0, 2]), *row.experts[2:]])
    cases = {
        b"": Reason.MALFORMED,
        row.experts[:-1]: Reason.MALFORMED,
        row.experts + row.experts[:4]: Reason.MALFORMED,
        bytes([*row.experts[1::-1], *row.experts[2:]]): Reason.MALFORMED,
        bytes([0, 6, *row.experts[2:]]): Reason.MALFORMED,
        (other if swapped == row.experts else swapped): Reason.BAD_PROOF_FORM,
        other: Reason.BAD_PROOF_FORM,
    }
    for experts, reason in cases.items():
        forged = encode(RolloutBatch(honest.header, (msgspec.structs.replace(row, experts=experts), *rest)))
        Path(made.path).write_bytes(forged)
        seen = judge(validator, root, made)
        assert (seen.outcome, seen.reason) == (VerdictOutcome.SLASH, reason), seen.detail
    plain: list[SampleRow] = [msgspec.structs.replace(one, experts=b"") for one in honest.rows]
    Path(made.path).write_bytes(encode(RolloutBatch(honest.header, tuple(plain))))
    assert judge(validator, root, made).reason == Reason.MALFORMED, "none at all, and so of the old form"
    Path(made.path).write_bytes(encode(honest))
    assert judge(validator, root, made).outcome == VerdictOutcome.ACCEPT
    dense = open_session(EngineSession, run, assets, root)
    assert judge(dense, root, made).reason == Reason.MALFORMED, "experts of a model that has none"


def test_a_run_whose_files_nobody_would_read_is_refused_before_anything_is_drawn(
    run: RunSpec, routed: Path, root: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.inference.produce.MAX_FILE_BYTES", 16 * 16 * 8 - 1)
    with pytest.raises(EngineError, match="2 experts in 2 layers"):
        submit(HONEST, run, routed, root, tmp_path)
    monkeypatch.setattr("node.inference.produce.MAX_FILE_BYTES", 16 * 16 * 8)
    assert len(decode(Path(submit(HONEST, run, routed, root, tmp_path).path).read_bytes(), 16).rows) == 16
    assert rollout.MAX_FILE_BYTES > 16 * 16 * 8
