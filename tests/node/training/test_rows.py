import msgspec
import pytest

from node.training.batch import BatchRow
from node.training.errors import TrainingError
from node.training.rows import usable_rows

GOOD = BatchRow(0, [3, 4], [5, 1], [-1.0, -0.5], 1.0, 0)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"sampler_logprobs": [float("nan"), -0.5]}, "logprobs"),
        ({"sampler_logprobs": [float("-inf"), -0.5]}, "logprobs"),
        ({"sampler_logprobs": [0.5, -0.5]}, "logprobs"),
        ({"reward": float("nan")}, "reward"),
        ({"reward": float("inf")}, "reward"),
        ({"output": [], "sampler_logprobs": []}, "empty"),
        ({"prompt": []}, "empty"),
        ({"output": [5]}, "empty"),
        ({"output": [5, 1, 5], "segments": [1, 1]}, "empty"),
        ({"output": [5, 1, 5], "segments": [1, 1, 2]}, "empty"),
        ({"output": [5, 1, 5]}, "empty"),
        ({"output": [5, 13]}, "vocabulary"),
        ({"prompt": [-1]}, "vocabulary"),
    ],
)
def test_a_bad_row_is_left_out_and_counted(change: dict, fault: str) -> None:
    kept, refused = usable_rows([GOOD, msgspec.structs.replace(GOOD, **change), GOOD], vocabulary=13)
    assert kept == [GOOD, GOOD] and refused == {fault: 1}
    with pytest.raises(TrainingError, match="1 rows"):
        usable_rows([msgspec.structs.replace(GOOD, **change)], vocabulary=13)


def test_a_row_of_several_turns_has_log_probs_for_what_was_sampled() -> None:
    turns = msgspec.structs.replace(GOOD, output=[5, 12, 1], segments=[1, 1, 1])
    assert usable_rows([turns], vocabulary=13) == ([turns], {}) and list(turns.sampled) == [5, 1]


def test_a_batch_of_another_vocabulary_says_so() -> None:
    with pytest.raises(TrainingError) as caught:
        usable_rows([GOOD, GOOD], vocabulary=5)
    assert "vocabulary" in caught.value.why and "tokenizer" in caught.value.remedy
