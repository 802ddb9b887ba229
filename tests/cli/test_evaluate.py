"""`intellect-node eval`: two models on the same problems with the same draws, and policies of a training directory."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.evaluate import _pair, _row
from cli.main import main
from node.environments.base import Problem, Segment
from node.inference.evaluation import EvaluatedAnswer
from node.inference.turns import PlayedRollout
from node.training.spool import Spool

RUN = """
name = "compared"
model = "model"
[environment]
name = "sort"
args = { digits = 2, held_back = 20 }
[rollout]
max_output_tokens = 4
[evaluation]
problems = 20
"""


def answered(rewards: Sequence[float | None], length: int = 3) -> list[EvaluatedAnswer]:
    rollout = PlayedRollout([Segment([5] * length, sampled=True)], True, np.zeros((length, 2), np.uint16))
    problems = [Problem(problem_id=str(number), prompt="", answer=("",)) for number in range(len(rewards))]
    return [
        EvaluatedAnswer(problem, rollout, reward, reward, None)
        for problem, reward in zip(problems, rewards, strict=True)
    ]


def test_a_difference_has_the_error_of_pairs_and_problems_count_once() -> None:
    """Hard and easy problems vary far more than the two models differ; more draws of one problem are not more
    problems."""
    before = [answered([0.0, 1.0] * 20), answered([0.0, 1.0] * 20)]
    gains = [0.1 * (number % 3) for number in range(40)]
    after = [answered([value + gain for value, gain in zip([0.0, 1.0] * 20, gains, strict=True)])] * 2
    pair = _pair({"a": before, "b": after}, "a", "b")
    assert pair["difference"] == pytest.approx(np.mean(gains))
    assert pair["error"] == pytest.approx(np.std(gains, ddof=1) / np.sqrt(40))
    assert pair["better"] == 26 and pair["worse"] == 0 and pair["problems"] == 40
    row = _row("a", before)
    assert row["answers"] == 80 and row["error"] == pytest.approx(0.0801, abs=1e-3) and row["error"] > 5 * pair["error"]


def test_an_answer_without_a_verdict_is_no_wrong_one() -> None:
    """Of forty problems the second model was judged in 36, and in 35: then it has no figure, and no difference."""
    before, right = answered([0.5] * 40), [1.0] * 40
    for unknown, figure in ((4, 1.0), (5, None)):
        after = answered([None] * unknown + right[unknown:])
        row, pair = _row("b", [after]), _pair({"a": [before], "b": [after]}, "a", "b")
        assert (row["reward"], row["undecided"], row["problems"]) == (figure, unknown, 40)
        assert pair["difference"] == (None if figure is None else 0.5)
        assert (pair["better"], pair["worse"]) == (40 - unknown, 0)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A directory of `train`: policies 0, kept as a milestone, and 2, which is all zeros."""
    from safetensors.torch import load_file

    from node.training.warmstart import SORT_ALPHABET, create_model
    from protocol.policy import encode_image

    create_model(tmp_path / "model", SORT_ALPHABET, seed=3, hidden=64, layers=1)
    (tmp_path / "run.toml").write_text(RUN)
    spool = Spool(tmp_path / "trained" / "spool", milestones=2)
    spool.prepare(b"run", tmp_path)
    weights = load_file(tmp_path / "model" / "model.safetensors")
    zeros = {name: np.zeros(tuple(tensor.shape), np.uint16) for name, tensor in weights.items()}
    shutil.copyfile(tmp_path / "model" / "model.safetensors", spool.policy_path(0))
    for step in (1, 2):
        spool.policy_path(step).write_bytes(encode_image(zeros))
    for step in (0, 1, 2):
        spool.metrics_path(step).write_text("{}")
    spool.forget_policies(2)
    return tmp_path


def test_models_and_policies_answer_the_same_draws(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home, run = str(trained / "trained"), str(trained / "run.toml")
    models = [str(trained / "model"), f"{home}@0", home]
    assert main(["eval", *models, "--run", run, "--draws", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    start, same, zeros = found["models"]
    assert [row["model"] for row in found["models"]] == [models[0], f"{home}@0", f"{home}@2"]
    assert start["answers"] == 40 and start["problems"] == 20
    assert start | {"model": ""} == same | {"model": ""} != zeros | {"model": ""}
    pair = found["pairs"][0]
    assert pair["difference"] == pair["error"] == pair["better"] == pair["worse"] == 0
    assert len(found["pairs"]) == 3
    assert main(["eval", models[0], home, "--run", run]) == 0
    assert "one standard error" in capsys.readouterr().out

    out = trained / "exported"
    assert main(["weights", "export", str(out), "--trained", home, "--step", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 0
    assert (out / "model.safetensors").read_bytes() == (trained / "model" / "model.safetensors").read_bytes()


def lora(model: Path, seed: int) -> dict[str, np.ndarray]:
    """A policy that says something else than its base at every token."""
    from safetensors.torch import load_file

    from protocol.lora import tensors_of
    from protocol.policy import bf16_bits

    random, found = np.random.default_rng(seed), dict[str, np.ndarray]()
    for name, weight in load_file(model / "model.safetensors").items():
        if name.endswith(("q_proj.weight", "down_proj.weight")):
            (a, b), (rows, columns) = tensors_of(name), weight.shape
            for tensor, shape in ((a, (2, columns)), (b, (rows, 2))):
                found[tensor] = bf16_bits(0.4 * random.standard_normal(shape, dtype=np.float32))
    return found


@pytest.fixture
def adapted(trained: Path) -> Path:
    """Two adapters to the model in PEFT's format, the first also as a policy of a training of its own."""
    from node.weights.export import write_adapter
    from protocol.policy import encode_image

    spool = Spool(trained / "lora" / "spool")
    spool.prepare(b"run", trained)
    for seed, name in enumerate(("a", "b")):
        (trained / "image").write_bytes(encode_image(lora(trained / "model", seed)))
        write_adapter(trained / "image", trained / name / "adapter", trained / "model")
        if not seed:
            shutil.copyfile(trained / "image", spool.policy_path(0))
            spool.metrics_path(0).write_text("{}")
    return trained


def test_adapters_answer_in_one_batch_what_each_answers_alone(
    adapted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def found(*words: str) -> dict[str, Any]:
        assert main(["eval", *words, "--run", str(adapted / "run.toml"), "--draws", "3", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        rows = {Path(row.pop("model")).name: row for row in told["models"]}
        return rows | {"bytes": told["adapter_bytes"]}

    base, beside = str(adapted / "model"), [f"--adapter={adapted / name}" for name in ("a", "b", "lora")]
    together, alone = found(base, *beside), found(base, beside[0])
    assert set(together) == {"model", "a", "b", "lora@0", "bytes"}
    assert together["lora@0"] == together["a"] == alone["a"] and together["model"] == alone["model"]
    assert together["b"] == found(base, beside[1])["b"]
    assert together["model"] == found(base, str(adapted / "trained"))["model"]
    assert len({str(together[name]) for name in ("model", "a", "b")}) == 3, "they are three policies"
    assert together["bytes"] == 4 * alone["bytes"] > 0, "four slots for three"
    assert main(["eval", base, *beside, "--run", str(adapted / "run.toml")]) == 0
    assert "3 adapters answered in one batch" in capsys.readouterr().out


def test_what_is_no_adapter_to_the_model_is_said(adapted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, base = ["--run", str(adapted / "run.toml")], str(adapted / "model")
    other = adapted / "other"
    shutil.copytree(adapted / "model", other)
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    for words, code, said in (
        ([base, str(other), "--adapter", str(adapted / "a")], 2, "2 models beside adapters"),
        ([str(adapted / "trained"), "--adapter", str(adapted / "a")], 2, "adapters are to a model directory"),
        ([base, "--adapter", str(adapted / "trained")], 6, "its policies are whole models"),
        ([base, "--adapter", base], 6, "no adapter at"),
        ([str(other), "--adapter", str(adapted / "lora")], 6, "an adapter to another model"),
        ([base, *["--adapter", str(adapted / "a")] * 2], 2, "is named twice"),
        ([base, *[f"--adapter={number}" for number in range(32)]], 2, "at most 32"),
    ):
        assert main(["eval", *words, *run]) == code, said
        assert said in capsys.readouterr().err


def test_what_is_no_model_is_said(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["--run", str(trained / "run.toml")]
    for models, code, said in (
        ([str(trained / "absent")], 6, "no model at"),
        ([str(trained / "trained@1")], 6, "no policy of step 1 is held"),
        ([str(trained / "model")] * 2, 2, "is named twice"),
        ([str(trained / "model"), f"{trained / 'model'}/"], 2, "model is named twice"),
        ([str(trained / "trained"), str(trained / "trained@2")], 2, "trained@2 is named twice"),
    ):
        assert main(["eval", *models, *run]) == code
        assert said in capsys.readouterr().err
