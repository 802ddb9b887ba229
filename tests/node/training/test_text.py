"""Rows of text: what a document sees, and the loss with its gradient."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from examples.make_pretrain import create_byte_model
from node.inference.torch_engine import build_model
from node.training.text import TextData, TextModel, packed_rows
from protocol.text import RowPlace
from tests.node.training.texts import compiled, spool_of

END = 1
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> object:
    folder = tmp_path_factory.mktemp("bytes")
    create_byte_model(folder, seed=2, hidden=32, layers=2)
    return build_model(folder)


def rows(count: int = 6, width: int = 21, seed: int = 0) -> np.ndarray:
    found = np.random.default_rng(seed).integers(2, 258, (count, width))
    found[0, 5] = found[0, 12] = found[2, 19] = found[3, 0] = found[4, width - 1] = END
    return found.astype(np.int64)


def reference(model: object, several: np.ndarray, z_loss: float) -> Tensor:
    """Document by document, with torch's own cross-entropy."""
    model.config._attn_implementation = "sdpa"  # type: ignore[attr-defined]
    total = torch.zeros(())
    for row in several:
        begins = [0, *(np.flatnonzero(row[:-1] == END) + 1)]
        for begin, end in zip(begins, [*begins[1:], len(row) - 1], strict=True):
            if begin == end:
                continue
            logits = model(input_ids=torch.tensor(row[None, begin:end]), use_cache=False).logits[0]  # type: ignore[operator]
            targets = torch.tensor(row[begin + 1 : end + 1])
            total = total + torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
            total = total + z_loss * torch.logsumexp(logits, -1).square().sum()
    return total


@pytest.mark.parametrize("cells", [1 << 24, 258 * 7])
def test_loss_and_gradient_are_those_of_each_document_by_itself(model: object, cells: int) -> None:
    several, text = rows(), TextModel(model, cells)
    parameters = dict(text.model.named_parameters())
    expected = reference(model, several, 0.01) * 0.5
    slopes = torch.autograd.grad(expected, list(parameters.values()))
    model.zero_grad(set_to_none=True)  # type: ignore[attr-defined]
    loss, sums = text(packed_rows(several, END, CPU), 0.5, 0.01)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert float(sums[0]) == pytest.approx(float(reference(model, several, 0.0).detach()), rel=1e-5)
    for (name, parameter), slope in zip(parameters.items(), slopes, strict=True):
        assert torch.allclose(parameter.grad, slope, rtol=1e-3, atol=1e-4), name


def test_an_empty_pass_has_no_gradient(model: object) -> None:
    model.zero_grad(set_to_none=True)  # type: ignore[attr-defined]
    loss, _ = TextModel(model, 1 << 20)(packed_rows(rows()[:0], END, CPU), 0.0, 0.1)
    loss.backward()
    assert all(float(p.grad.abs().max()) == 0 for p in model.parameters() if p.grad is not None)  # type: ignore[attr-defined]


def test_held_back_rows_are_never_trained_on(tmp_path: Path) -> None:
    run = compiled(tmp_path, steps=40)
    data = TextData(run.spec, b"run", spool_of(run, tmp_path / "desk").assets)
    assert data.names == ["counting", "letters"] and len(data.held_back(1)) == 8 and data.end == END
    learnt = {place for step in range(160) for replica_id in range(4) for place in data.cursor.places(replica_id, step)}
    most = [max(place.row for place in learnt if place.part == part) for part in (0, 1)]
    assert [row + 9 for row in most] == data._counts  # all others are, at last
    first = np.stack([data._row(RowPlace(0, data._counts[0] - 8 + row)) for row in range(8)])
    assert data.held_back(0).tolist() == first.tolist()
    assert data.rows(1, 3).tolist() == data.rows(1, 3).tolist() != data.rows(2, 3).tolist()
