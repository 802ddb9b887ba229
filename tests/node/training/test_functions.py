"""Losses and advantages of one's own beside ours: the same numbers where they compute the same, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from node.inference.torch_engine import build_model
from node.own_code import OwnCodeError
from node.training.functions import functions_of
from node.training.learner import Learner
from protocol.recipe import Objective, Recipe
from tests.node.training.conftest import LIMIT, made_up_rows

OURS = """
import numpy as np
from node.training.advantages import group_advantages
from node.training.losses import TokenLoss, tis

def loss(tokens, objective):
    found = tis(
        tokens.logprobs, tokens.sampler_logprobs, tokens.advantages, proximal_logprobs=tokens.proximal_logprobs,
        low=objective.clip_low, high=objective.clip_high, floor=objective.ratio_floor, cap=objective.ratio_cap,
    )
    return TokenLoss(found.loss, {**found.metrics, "twice": tokens.advantages * 0 + 2})

loss.needs_proximal = True

def advantage(samples):
    return group_advantages(samples.groups, samples.rewards, samples.lengths, "grpo").tolist()
"""


def assets_with(folder: Path, source: str) -> Path:
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "mine.py").write_text(source)
    return folder


def test_a_copy_of_our_loss_and_advantage_learns_the_same_and_its_metrics_are_reported(
    tiny_assets: Path, make_learner: Callable[..., Learner], tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    recipe = Recipe(name="tis", updates_per_step=2)
    ours = make_learner(recipe)
    own = Learner(
        build_model(tiny_assets / "model"),
        msgspec.structs.replace(recipe, loss="mine:loss", advantage="mine:advantage"),
        1.0,
        max_output_tokens=LIMIT,
        assets=assets_with(tmp_path, OURS),
    )
    own.load_weights(load_file(tiny_assets / "model" / "model.safetensors"))
    rows = made_up_rows()
    told, said = ours.step(rows, 0), own.step(rows, 0)
    for name, weights in ours.image().items():
        assert torch.equal(weights, own.image()[name]), name
    assert said.pop("twice") == 2.0 and said == told


def test_the_examples_functions_are_usable(tmp_path: Path) -> None:
    """Loading them tries them on a few numbers."""
    from examples import own_functions

    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "own_functions.py").write_text(Path(own_functions.__file__).read_text())
    objective = Objective(loss="own_functions:loss", advantage="own_functions:advantage")
    assert not functions_of(objective, tmp_path).needs_proximal
    assert not functions_of(objective, tmp_path).pulls_at_zero_advantage
    row = {"problem_id": "p", "prompt": "3+4=", "answer": ("7",)}
    assert [own_functions.score(row, answer) for answer in ("7", "8", "x", "")] == [1.0, 0.5, 0.0, 0.0]


@pytest.mark.parametrize(
    ("returned", "said", "pulls"),
    [
        ("(tokens.logprobs - tokens.sampler_logprobs) ** 2", "", True),
        ("tokens.logprobs * tokens.advantages", "", False),
        ("tokens.logprobs * tokens.advantages", "loss.pulls_at_zero_advantage = True", True),
    ],
)
def test_whether_a_loss_needs_groups_without_signal_is_found_by_trying_it(
    tmp_path: Path, returned: str, said: str, pulls: bool
) -> None:
    source = f"def loss(tokens, objective):\n    return {returned}\n{said}\n"
    assert functions_of(Objective(loss="mine:loss"), assets_with(tmp_path, source)).pulls_at_zero_advantage is pulls


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("tokens.logprobs.mean()", r"float32\[\] for 6 tokens"),
        ("tokens.logprobs.long()", r"int64\[6\]"),
        ("tokens.advantages", "carries no gradient"),
        ("tokens.logprobs * float('nan')", "not finite for 6 of 6 tokens"),
        ("[0.0] * 6", "a list"),
        ("None", "a NoneType"),
        ("tokens.rewards", "AttributeError"),
    ],
)
def test_a_loss_that_cannot_be_used_is_named_before_training(tmp_path: Path, returned: str, message: str) -> None:
    source = f"def loss(tokens, objective):\n    return {returned}\n"
    with pytest.raises(OwnCodeError, match=message) as caught:
        functions_of(Objective(loss="mine:loss"), assets_with(tmp_path, source))
    assert "mine:loss" in caught.value.what and "per token" in caught.value.remedy


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("samples.rewards.mean()", r"shape \[\] for 4 samples"),
        ("samples.rewards[:1]", r"shape \[1\]"),
        ("samples.rewards / 0", "not finite for 4 samples"),
        ("'x'", "a str"),
    ],
)
def test_an_advantage_that_cannot_be_used_is_named_before_training(tmp_path: Path, returned: str, message: str) -> None:
    source = f"import numpy\nnumpy.seterr(all='ignore')\ndef advantage(samples):\n    return {returned}\n"
    with pytest.raises(OwnCodeError, match=message), np.errstate(all="ignore"):
        functions_of(Objective(loss="dppo", advantage="mine:advantage"), assets_with(tmp_path, source))
