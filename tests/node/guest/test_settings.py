"""[guest] of config.toml: all mistakes at once, each by its name."""

from pathlib import Path
from typing import Any

import pytest

from node.config import NodeConfig
from node.errors import ConfigError
from node.guest.settings import GuestSettings, bytes_of, read_guest, seconds_of


def test_all_of_it_is_read() -> None:
    guest = read_guest(
        {
            "hours": ["mon-fri 22:00-07:00", "sat,sun 00:00-24:00"],
            "time_zone": "Europe/Berlin",
            "only_idle": True,
            "idle_minutes": 10,
            "patience": "2m",
            "cores": 4,
            "gpu_memory": "12 GiB",
            "gpu_watts": 200,
            "disk": "50GB",
            "upload": "2 MB/s",
        }
    )
    assert (len(guest.hours.spans), str(guest.hours.zone), guest.rests) == (2, "Europe/Berlin", True)
    assert (guest.idle_minutes, guest.patience, guest.cores, guest.gpu_watts) == (10, 120, 4, 200)
    assert (guest.gpu_memory, guest.disk, guest.upload) == (12 * 2**30, 50 * 10**9, 2 * 10**6)
    assert read_guest({}) == GuestSettings() and not GuestSettings().rests


BAD: dict[str, Any] = {
    "hours": ["22:00-07:00", "late"],
    "time_zone": "../../etc/passwd",
    "only_idle": "yes",
    "idle_minutes": -1,
    "patience": "soon",
    "cores": 0,
    "gpu_memory": "all",
    "gpu_watts": float("nan"),
    "disk": 0,
    "upload": "1kB",
    "warmth": 3,
}


def test_all_mistakes_are_told_at_once_each_by_its_name() -> None:
    with pytest.raises(ConfigError) as caught:
        read_guest(BAD)
    assert all(f"{name}: " in caught.value.why for name in BAD)
    assert "there is no such setting" in caught.value.why and "hours (when it may work" in caught.value.remedy


@pytest.mark.parametrize("name", BAD)
def test_each_mistake_is_refused_by_itself(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: "):
        read_guest({name: BAD[name]})


@pytest.mark.parametrize("values", [{"time_zone": "UTC"}, {"idle_minutes": 5}, {"hours": []}, {"cores": True}])
def test_what_would_say_nothing_is_a_mistake(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        read_guest(values)


def test_the_settings_refuse_them_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cores: '0' is no whole number"):
        NodeConfig(home=tmp_path, guest={"cores": 0})


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("1h30m", 5400), ("3d", 259_200), (45, 45), (0.5, 0.5)])
def test_spans_of_time(text: Any, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "2 hours", "-1h", "1e9d", "999999999d", None, [], True, float("inf")])
def test_what_is_no_span_of_time(text: Any) -> None:
    with pytest.raises(ValueError, match="no span of time|no number from"):
        seconds_of(text)


@pytest.mark.parametrize("text", ["", "12 GB extra", "1e9", "-5 MB", "12 XB", 0, 2**60, None, "9" * 400, True])
def test_what_is_no_size(text: Any) -> None:
    with pytest.raises(ValueError, match="no size|out of bounds"):
        bytes_of(text)
