"""What is drawn, forced and kept, without vLLM: the hooks get rows and logits as its model runner gives them."""

import numpy as np
import pytest
import torch

from node.inference.errors import EngineError
from node.inference.vllm.draws import RequestDraw, draw_of, extra_args
from node.inference.vllm.hooks import NOT_A_NUMBER, ActivationRecorder, Hooks, RowWatch, bf16_bits
from protocol import sampling
from tests.pretended_cuda import pretended_cuda

VOCABULARY, HIDDEN = 300, 16


@pytest.fixture
def hooks() -> Hooks:
    hooks = Hooks()
    hooks.use_head(torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(1)), None)
    return hooks


def rows(count: int) -> torch.Tensor:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(2))


def taken(recorder: ActivationRecorder, number: int, count: int) -> np.ndarray:
    """Of a request whose rows are kept whole."""
    heads = recorder.take(number, count)
    assert isinstance(heads, np.ndarray)
    return heads


def test_a_request_brings_its_draws_along_bit_for_bit() -> None:
    numbers = sampling.uniforms(bytes(32), 5)
    draw = draw_of(extra_args(7, 0.9, numbers), [1, 2])
    assert draw is not None and (draw.number, draw.temperature, list(draw.output)) == (7, 0.9, [1, 2])
    assert np.array_equal(draw.uniforms, numbers)
    assert draw_of(None) is draw_of({"other": 1}) is None


def test_the_one_choice_that_is_left_is_the_reference_samplers(hooks: Hooks) -> None:
    """Some rows are others' (their logits stay as they are), and two decoders have two temperatures."""
    hidden = rows(40)
    logits = hooks.logits(hidden)
    before = logits.clone()
    ours = [row for row in range(40) if row % 4]
    draws = [RequestDraw(row, (0.7, 1.0)[row % 2], sampling.uniforms(bytes([row]) * 32, 3), []) for row in ours]
    hooks.draw(logits, ours, draws, [row % 3 for row in ours])
    for row, draw in zip(ours, draws, strict=True):
        u = draw.uniforms[row % 3 : row % 3 + 1]
        wanted = sampling.choose(before[row : row + 1].numpy(), u, draw.temperature)[0]
        assert int(logits[row].argmax()) == wanted and torch.isinf(logits[row]).sum() == 1
        assert np.array_equal(hooks.recorder._taken[draw.number].rows[-1], bf16_bits(hidden[row]))
    assert torch.equal(logits[::4], before[::4])


def test_rows_without_probabilities_are_marked(hooks: Hooks) -> None:
    logits = hooks.logits(torch.full((1, HIDDEN), torch.nan))
    hooks.draw(logits, [0], [RequestDraw(1, 1.0, np.array([0.5]), [])], [0])
    heads = taken(hooks.recorder, 1, 1)
    assert (heads == NOT_A_NUMBER).all()


def test_a_sequence_is_looked_at_as_the_reference_sampler_would(hooks: Hooks) -> None:
    hidden, drawn = rows(9), np.arange(9) * 30
    hooks.watches["a"] = RowWatch(np.arange(9))
    hooks.watches["a"].saw(0, hidden)
    logits = hooks.logits(hidden).numpy()
    lo, hi, logprobs, heads = hooks.look("a", drawn, 0.8)
    wanted = sampling.interval(logits, drawn, 0.8)
    assert np.allclose(lo, wanted[0], atol=1e-12) and np.allclose(hi, wanted[1], atol=1e-12)
    assert np.allclose(logprobs, wanted[2], atol=1e-6) and np.array_equal(heads, bf16_bits(hidden))
    assert not hooks.watches


def test_a_request_that_begins_anew_is_recorded_once() -> None:
    recorder = ActivationRecorder()
    row = np.arange(4, dtype=np.uint16)[:, None]
    for place in (0, 0, 1, 2):  # a prompt in two chunks, two tokens more
        recorder.add([(5, place, None)], row[place : place + 1])
    # its memory was taken after one token; others run beside it
    recorder.add([(5, 1, None), (6, 0, None)], row[[3, 3]])
    assert taken(recorder, 5, 2)[:, 0].tolist() == [0, 3]
    with pytest.raises(ValueError, match="1 rows for 2"):
        recorder.take(6, 2)


def test_a_row_that_no_hook_saw_is_an_error_and_no_number(hooks: Hooks) -> None:
    """A whole CUDA graph calls no hook."""
    for first in (None, 0):
        hooks.watches["a"] = RowWatch(np.array([2, 3, 6]))
        if first is not None:
            hooks.watches["a"].saw(first, rows(4))
        with pytest.raises(EngineError, match="not seen"):
            hooks.look("a", np.array([1, 2, 3]), 1.0)


@pytest.mark.parametrize("temperatures", [(0.9, 0.9), (0.7, 1.0)])
def test_a_draw_waits_for_the_gpu_once(hooks: Hooks, temperatures: tuple[float, float]) -> None:
    hidden, numbers = rows(6), sampling.uniforms(bytes(32), 6)
    draws = [RequestDraw(row, temperatures[row % 2], numbers, []) for row in range(6)]
    logits = hooks.logits(hidden)
    hooks.draw(logits, range(6), draws, [0] * 6)
    with pretended_cuda() as gpu:
        weight = torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(1))
        there = Hooks()
        there.use_head(weight.to("cuda"), None)
        logits_there = there.logits(hidden.to("cuda"))
        gpu.waits.clear()
        there.draw(logits_there, range(6), draws, [0] * 6)
        assert gpu.waits == {"a copy to the CPU": 1}
        assert torch.equal(logits_there.cpu().argmax(1), logits.argmax(1))
    for number in range(6):
        assert np.array_equal(taken(there.recorder, number, 1)[0], taken(hooks.recorder, number, 1)[0])


def test_of_several_processes_one_keeps_rows() -> None:
    hooks = Hooks(records=False)
    hooks.use_head(torch.randn(VOCABULARY, HIDDEN), None)
    logits = hooks.logits(rows(1))
    hooks.draw(logits, [0], [RequestDraw(1, 1.0, np.array([0.5]), [])], [0])
    assert torch.isinf(logits).sum() == 1 and not hooks.recorder._taken


def test_rows_that_come_in_chunks_are_kept_where_they_are_wanted() -> None:
    watch = RowWatch(np.array([2, 3, 6]))
    hidden = rows(8)
    for first, last in ((0, 2), (2, 4), (4, 6), (0, 3), (6, 8)):
        watch.saw(first, hidden[first:last])
    assert torch.equal(watch.heads(), hidden[[2, 3, 6]])
