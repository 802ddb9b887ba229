"""Calibration on a tiny model: what it measures, what it writes, and that the decision follows from it."""

import json
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from node.calibration.calibrate import Calibration, CalibrationPlan, Measured, calibrate, hard_thresholds, measure
from node.calibration.measure import fp8, int4, int8, most_samples, stepped
from node.calibration.write import plot, write_thresholds
from node.environments.registry import load_environment
from node.inference.settings import EngineSettings
from node.inference.tokenizer import LocalTokenizer
from node.inference.torch_engine import TorchEngine
from node.run.file import compile_run, load_run_file
from protocol.decision import SampleStatistics, proof_distance
from protocol.engines import LORA, pair
from protocol.lora import Lora, is_adapter
from protocol.run import RunSpec
from protocol.toploc import ProofErrors

RUN_FILE = """# mine
name = "tiny"
model = "model"  # where it lies

[environment]
name = "sort"
args = { digits = 3 }

[verification]
toploc_k = 32 # as agreed
quorum = 2
"""


@pytest.fixture(scope="module")
def calibrated(tiny_run: RunSpec, tiny_assets: Path) -> tuple[Calibration, Measured]:
    rollout = msgspec.structs.replace(tiny_run.rollout, max_output_tokens=12)
    run = msgspec.structs.replace(tiny_run, rollout=rollout)
    environment = load_environment(run.environment, tiny_assets, LocalTokenizer(tiny_assets / "model"))
    settings = [EngineSettings(), EngineSettings(dtype="bfloat16", attention="eager")]
    return calibrate(run, tiny_assets / "model", environment, CalibrationPlan(settings, samples=16), lambda *_: None)


def test_honest_engines_are_near_and_cheats_far(calibrated: tuple[Calibration, Measured]) -> None:
    result, _ = calibrated
    exact, rough = EngineSettings().name, EngineSettings(dtype="bfloat16", attention="eager").name
    for name in (exact, rough):
        same = result.honest[pair(name, name)]
        assert same.proof_distance < 0.1 and same.sampling < 1e-6
        assert result.honest[pair(name, exact if name == rough else rough)].proof_distance > same.proof_distance
    assert set(result.verification.engines) == {exact, rough}
    tight, loose = (result.verification.thresholds(maker, exact) for maker in (exact, rough))
    assert tight.mantissa_mean < loose.mantissa_mean == result.verification.mantissa_mean
    assert result.cheating["int4"].proof_distance > 10
    assert result.cheating["garbage"].sampling > 0.1
    assert all(outcome.false_alarms == 0 for outcome in result.honest.values())
    assert result.cheating["garbage"].refused == 1 and result.cheating["int4"].refused > 0.8
    assert result.cheating["int4"].suspected is not None and result.cheating["int4"].convicted is not None
    assert result.cheating["int4"].suspected < result.cheating["int4"].convicted
    assert result.crossed["garbage"].suspected is not None
    for name, table in result.verification.decision.honest.items():
        assert table.allowance == pytest.approx(max(0.0, np.log(result.expectation[name])))


def test_a_large_model_is_measured_with_fewer_samples(tiny_run: RunSpec, tiny_assets: Path, tmp_path: Path) -> None:
    assert most_samples(tiny_run, tiny_assets / "model", [EngineSettings()]) == 256
    large = tmp_path / "large"
    shutil.copytree(tiny_assets / "model", large)
    config = json.loads((large / "config.json").read_text())
    wide = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
    (large / "config.json").write_text(json.dumps(config | wide))
    assert most_samples(tiny_run, large, [EngineSettings()]) == 64
    assert most_samples(tiny_run, large, [EngineSettings(device="cuda")]) == 256


def test_only_pairs_that_always_agree_have_narrow_cuts_for_proofs(tiny_run: RunSpec) -> None:
    """One proof of a class that rounds differently now and then may be as far off as that of any other class."""

    def seen(means: list[float]) -> list[SampleStatistics]:
        return [SampleStatistics((ProofErrors(0, mean, 0.0),), np.zeros(4)) for mean in means]

    looks = {"a>a": seen([0.0] * 40), "b>b": seen([0.0] * 39 + [0.2]), "a>b": seen([2.0] * 40)}
    thresholds = hard_thresholds(tiny_run, looks, seed=0)
    assert thresholds.thresholds("a", "a").mantissa_mean == 0.25
    assert (
        thresholds.thresholds("b", "b").mantissa_mean
        == thresholds.thresholds("a", "b").mantissa_mean
        == thresholds.mantissa_mean
        == 3.0
    )


def test_the_cuts_stand_in_the_run_file_and_its_comments_stay(
    calibrated: tuple[Calibration, Measured], tiny_assets: Path, tmp_path: Path
) -> None:
    source, target = tmp_path / "run.toml", tmp_path / "calibrated.toml"
    source.write_text(RUN_FILE)
    (tmp_path / "model").symlink_to(tiny_assets / "model")
    verification = calibrated[0].verification
    for _ in range(2):  # again over its own result: nothing piles up
        write_thresholds(source, target, verification)
        source = target
    text = target.read_text()
    assert "# mine" in text and "# where it lies" in text and "# as agreed" in text
    read = load_run_file(target).verification
    assert read == msgspec.structs.replace(verification, quorum=2)
    assert compile_run(target).spec.verification.decision.calibrated
    assert text.count("[verification.decision]") == 1


def test_a_run_that_learns_adapters_is_measured_with_one(
    tiny_run: RunSpec, tiny_assets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without, engines that keep adapters apart would be measured without the rounding that they add."""
    recipe = msgspec.structs.replace(tiny_run.recipe, lora=Lora(rank=4), learning_rate=3e-3)
    rollout = msgspec.structs.replace(tiny_run.rollout, max_output_tokens=12)
    run = msgspec.structs.replace(tiny_run, recipe=recipe, rollout=rollout)
    loaded: list[bool] = []
    load = TorchEngine.load
    monkeypatch.setattr(
        TorchEngine, "load", lambda one, weights: (loaded.append(is_adapter(weights)), load(one, weights))
    )
    environment = load_environment(run.environment, tiny_assets, LocalTokenizer(tiny_assets / "model"))
    settings, k = [EngineSettings(), EngineSettings(attention=LORA)], run.verification.toploc_k
    measured = measure(run, tiny_assets / "model", environment, CalibrationPlan(settings, samples=8), lambda *_: None)
    assert loaded.count(True) == 2 + 2 + 1 and loaded.count(False) == 5, "only cheats have other weights"
    names = [one.name for one in settings]
    for name, samples in measured.honest.items():
        assert max(proof_distance(proof, k) for one in samples for proof in one.errors) < 0.5, name
        assert max(float(one.distances.max()) for one in samples) < 1e-4
    assert set(measured.honest) == {pair(one, other) for one in names for other in names}
    int4 = [proof_distance(proof, k) for one in measured.cheating["int4"] for proof in one.errors]
    assert np.mean(int4) > 5


def test_the_plot_is_a_picture(calibrated: tuple[Calibration, Measured], tmp_path: Path) -> None:
    plot(calibrated[1], 32, "tiny", tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_cheaper_weights_are_near_the_right_ones_and_not_equal() -> None:
    random = torch.Generator().manual_seed(0)
    weights = {"a.weight": torch.randn(64, 200, generator=random), "norm.weight": torch.ones(64)}
    errors = {}
    for name, change in (("int8", int8), ("fp8", fp8), ("int4", int4)):
        cheap = change(weights)
        assert torch.equal(cheap["norm.weight"], weights["norm.weight"])
        errors[name] = float((cheap["a.weight"] - weights["a.weight"]).abs().mean())
    assert 0 < errors["int8"] < errors["fp8"] < errors["int4"] < 0.3
    moved = stepped(weights, 1e-2)["a.weight"] - weights["a.weight"]
    assert 0.008 < float(moved.abs().mean()) < 0.02


@pytest.mark.parametrize("settings", [EngineSettings(attention="eager"), EngineSettings(dtype="bfloat16")])
def test_other_engines_tell_nearly_the_same_story(tiny_assets: Path, settings: EngineSettings) -> None:
    from node.inference.engine import FinishedSequence

    sequences = [FinishedSequence([4, 5, 6], [7, 8, 9, 10, 4, 1])]
    engines = [TorchEngine(tiny_assets / "model"), TorchEngine(tiny_assets / "model", settings)]
    for engine in engines:
        engine.load(engine.read(str(tiny_assets / "model" / "model.safetensors")))
    one, other = (engine.prefill(sequences, 1.0)[0] for engine in engines)
    assert np.abs(one.lo - other.lo).max() < 0.02
    assert engines[1].dtype == settings.dtype and engines[1].name == settings.name


def test_engines_sum_bfloat16_in_float32_and_round_no_float32(tiny_assets: Path) -> None:
    """What classes say; whoever used this process before may have said otherwise."""
    products = torch.backends.cuda.matmul
    products.allow_bf16_reduced_precision_reduction = True
    torch.set_float32_matmul_precision("high")
    TorchEngine(tiny_assets / "model")
    assert not products.allow_bf16_reduced_precision_reduction
    assert torch.get_float32_matmul_precision() == "highest"
