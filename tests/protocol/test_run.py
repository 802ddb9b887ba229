import msgspec
import pytest

from protocol.run import (
    Asset,
    EnvironmentSpec,
    Recipe,
    RolloutSpec,
    RunError,
    RunSpec,
    check_asset_path,
    decode_run,
    encode_run,
)

RUN = RunSpec(name="sort", environment=EnvironmentSpec(name="sort", args={"digits": 4}))


def test_the_same_run_always_has_the_same_bytes() -> None:
    assert decode_run(encode_run(RUN)) == RUN
    assert encode_run(decode_run(encode_run(RUN))) == encode_run(RUN)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"rollout": RolloutSpec(group_size=1)}, "group_size"),
        ({"rollout": RolloutSpec(prompts_per_file=64)}, "prompts_per_file"),
        ({"rollout": RolloutSpec(temperature=0.0)}, "temperature"),
        ({"recipe": Recipe(learning_rate=-1.0)}, "learning_rate"),
        ({"recipe": Recipe(clip_high=5.0)}, "clip_high"),
        ({"recipe": Recipe(ratio_cap=0.5)}, "ratio_cap"),
        ({"name": ""}, "name"),
        ({"version": 2}, "version"),
        ({"assets": (Asset(path="../secret", root="00", size=1),)}, "assets"),
    ],
)
def test_a_senseless_run_names_the_field(change: dict, field: str) -> None:
    with pytest.raises(RunError, match=field):
        decode_run(encode_run(msgspec.structs.replace(RUN, **change)))


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../b", "", "a//b", ".hidden", "a\\b", "a\x00b", "x" * 200])
def test_an_asset_cannot_leave_its_directory(path: str) -> None:
    with pytest.raises(RunError):
        check_asset_path(path)


def test_unknown_fields_and_oversize_are_refused() -> None:
    with pytest.raises(RunError, match="surprise"):
        decode_run(encode_run(RUN)[:-1] + b',"surprise":1}')
    with pytest.raises(RunError):
        decode_run(b" " * 70_000)
