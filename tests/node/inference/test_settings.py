import pytest

from node.inference import settings
from node.inference.settings import EngineSettings, Wish, wish_from


@pytest.fixture(autouse=True)
def hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "hardware", lambda device: {"cpu": "x86", "cuda": "cuda-sm90"}[device])


@pytest.mark.parametrize(
    ("permitted", "device", "dtype"),
    [
        (["*/*/*"], "cuda", "bfloat16"),
        (["*/float32/*"], "cuda", "float32"),
        (["x86/*/*"], "cpu", "float32"),
        (["x86/bfloat16/*"], "cpu", "bfloat16"),
        (["arm/float32/*"], "cuda", "bfloat16"),
    ],
)
def test_the_best_device_computes_in_the_best_way_that_the_run_permits(
    permitted: list[str], device: str, dtype: str
) -> None:
    granted = Wish().granted(permitted, ["cuda", "cpu"])
    assert (granted.device, granted.dtype) == (device, dtype)


def test_what_the_command_line_says_stays() -> None:
    wish = wish_from(["--device", "cpu", "--attention", "eager", "--batch-tokens", "64"])
    assert wish.granted(["*/*/*"], ["cuda", "cpu"]) == EngineSettings("cpu", "float32", "eager", 64)
    forbidden = wish_from(["--dtype", "bfloat16"]).granted(["*/float32/*"], ["cpu"])
    assert forbidden.dtype == "bfloat16"  # the node then says that the run does not permit it


def test_nonsense_on_the_command_line_ends_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--dtype", "fp4"], ["--batch-tokens", "0"]):
        with pytest.raises(SystemExit):
            wish_from(wrong)
    assert "batch-tokens" in capsys.readouterr().err
