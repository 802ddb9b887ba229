import msgspec
import pytest

from node.training.errors import TrainingError
from node.training.settings import MOST_REPLAYED, TrainerSettings, decode_settings, read_settings


def test_settings_survive_the_spool() -> None:
    settings = TrainerSettings(world_size=2, dtype="bfloat16", activation_checkpointing=True)
    assert decode_settings(msgspec.json.encode(settings)) == settings


@pytest.mark.parametrize("table", [{"world_sise": 2}, {"world_size": 0}, {"dtype": "float8"}, {"threads": "many"}])
def test_a_wrong_setting_is_named(table: dict) -> None:
    with pytest.raises(TrainingError) as caught:
        read_settings(table)
    assert next(iter(table)) in caught.value.why and "micro_batch_tokens" in caught.value.remedy


def test_a_trainer_that_no_validator_could_audit_is_refused() -> None:
    TrainerSettings(checkpoint_every=MOST_REPLAYED).check_auditable()
    with pytest.raises(TrainingError, match="checkpoint_every is 65"):
        TrainerSettings(checkpoint_every=MOST_REPLAYED + 1).check_auditable()


def test_a_file_that_is_no_json_is_an_error() -> None:
    with pytest.raises(TrainingError):
        decode_settings(b"{")
