"""Caps that are below what a run needs, and settings that a machine or a role cannot heed: refused by name."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from node.chain.errors import ChainError
from node.config import DISK_FIXED, NodeConfig
from node.guest.settings import read_guest
from node.hardware import Hardware
from node.hardware.gpu import Gpu
from node.preflight import guest as guests
from node.preflight.finding import PreflightFailed
from node.preflight.guest import capped, check_guest, refuse_guest
from node.preflight.survey import PreflightSurvey, Scope
from node.recipe.speed import Speed
from protocol.pretraining import Pretraining
from protocol.run import EnvironmentSpec, RunSpec

GIB = 2**30
RUN = RunSpec(name="t", environment=EnvironmentSpec(name="sort"))
BARE = Hardware(8, 32 * GIB, ())
CARD = Hardware(8, 32 * GIB, (Gpu("card", 24 * GIB),))


def config(tmp_path: Path, guest: dict[str, Any], **more: Any) -> NodeConfig:
    return NodeConfig(home=tmp_path, guest=guest, **more)


def needing(monkeypatch: pytest.MonkeyPatch, weights: int, **of_worker: float) -> RunSpec:
    """A run whose model has so many bytes of weights."""
    monkeypatch.setattr(RunSpec, "weight_bytes", lambda *_: weights)
    need = msgspec.structs.replace(RUN.requirements.worker, **of_worker)
    return msgspec.structs.replace(RUN, requirements=msgspec.structs.replace(RUN.requirements, worker=need))


@pytest.mark.parametrize(
    ("guest", "says", "remedy"),
    [
        ({"cores": 2}, "[guest] cores = 2: the run asks for 4 (requirements.worker.cores)", "set cores = 4"),
        ({"gpu_memory": "8 GiB"}, "[guest] gpu_memory = 8.0 GiB: the run needs at least 11.6", '"11.7 GiB" or more'),
        ({"disk": "30 GB"}, "[guest] disk = 30 GB: the run needs at least 35.9 GB", 'disk = "36.0 GB" or more'),
    ],
)
def test_a_cap_below_what_the_run_needs_is_refused_with_what_it_needs(
    guest: dict[str, Any], says: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = needing(monkeypatch, 10 * GIB, cores=4)
    with pytest.raises(PreflightFailed) as caught:
        refuse_guest(config(tmp_path, guest), "worker", CARD, run)
    assert says in caught.value.why and remedy in caught.value.remedy
    # The control: what is told as enough is enough.
    enough = {"cores": 4, "gpu_memory": "11.7 GiB", "disk": "36.0 GB"}
    refuse_guest(config(tmp_path, {name: enough[name] for name in guest}), "worker", CARD, run)
    refuse_guest(config(tmp_path, {}), "worker", CARD, run)


def test_all_caps_that_are_too_low_are_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = needing(monkeypatch, 10 * GIB, cores=4)
    tiny = check_guest(config(tmp_path, {"disk": "460 MB"}), "worker", BARE, None)
    assert tiny[0].level == "failure" and "logs and journals alone may take" in tiny[0].what, "whatever the run"
    low = config(tmp_path, {"cores": 1, "gpu_memory": "1 GiB", "disk": "1 GB"})
    assert [finding.level for finding in check_guest(low, "worker", CARD, run)] == ["failure"] * 3


@pytest.mark.parametrize("role", ["validator", "trainer"])
@pytest.mark.parametrize("guest", [{"hours": "22:00-07:00"}, {"only_idle": True}])
def test_who_promises_more_than_files_has_no_hours(role: str, guest: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(PreflightFailed, match="cannot rest"):
        refuse_guest(config(tmp_path, guest), role, BARE)
    refuse_guest(config(tmp_path, guest), "worker", BARE)


@pytest.mark.parametrize(
    ("watts", "says"), [([300.0], "may take 300, and only root"), (None, "does not say"), ([200.0, 180.0], "")]
)
def test_power_is_looked_at_and_never_set(
    watts: list[float] | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guests, "power_limits", lambda: watts)
    (found,) = check_guest(config(tmp_path, {"gpu_watts": 200}), "worker", CARD, None)
    assert says in found.what and (found.level == "failure") == bool(says)
    assert watts != [300.0] or "nvidia-smi -pl 200" in found.remedy


@pytest.mark.parametrize("name", ["gpu_memory", "gpu_watts"])
def test_what_there_is_not_cannot_be_capped(name: str, tmp_path: Path) -> None:
    (found,) = check_guest(config(tmp_path, {name: 200}), "worker", BARE, None)
    assert found.level == "failure" and f"[guest] {name}: this machine has no GPU" in found.what


def test_cores_are_refused_where_no_system_keeps_a_program_to_them(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(guests.sys, "platform", "darwin")
    (found,) = check_guest(config(tmp_path, {"cores": 2}), "worker", BARE, None)
    assert found.level == "failure" and "darwin" in found.what


def test_a_learner_takes_what_the_model_needs(tmp_path: Path) -> None:
    text = msgspec.structs.replace(RUN, pretraining=Pretraining())
    (found,) = check_guest(config(tmp_path, {"gpu_memory": "20 GiB"}), "worker", CARD, text)
    assert found.level == "failure" and "trains in this run" in found.what


def test_caps_reach_what_heeds_them(tmp_path: Path) -> None:
    own = config(tmp_path, {"disk": "10 GB", "upload": "1 MB", "gpu_memory": "6 GiB"}, upload_limit=5e6)
    assert own.quota == (10**10 - DISK_FIXED) * 7 // 10 and own.quota * (1 + 1 / 2.3) + DISK_FIXED <= 1.01 * 10**10
    assert (own.upload_rate, own.relay_offer) == (1e6, "off")
    assert own.engine_options == ["--most-gib", "6.0000"]
    assert capped(CARD, own.limits).gpus[0].memory == 6 * GIB
    assert config(tmp_path, {"upload": "1 MB"}, relay="on").relay_offer == "on"
    free = config(tmp_path, {})
    assert (free.quota, free.upload_rate, free.relay_offer, free.engine_options) == (free.store_quota, 0, "auto", [])
    assert capped(CARD, read_guest({})) is CARD


def test_a_gateway_has_no_limit_and_so_stands_not_beside_one(tmp_path: Path) -> None:
    with pytest.raises(PreflightFailed, match="gateway"):
        refuse_guest(config(tmp_path, {"upload": "1 MB"}, gateway="127.0.0.1:0"), "worker", BARE)


class Gas:
    """A chain that knows its price of gas, or does not."""

    def __init__(self, price: int | None) -> None:
        self.price = price

    async def gas_price(self) -> int:
        if self.price is None:
            raise ChainError("no", "answer", "wait")
        return self.price


@pytest.mark.parametrize(
    ("speed", "gas", "reward", "says"),
    [
        (50.0, 5 * 10**6, 10**15, "up to 1,620 tokens and 0.0000000979 of coin for gas a day, at 9 hours a day"),
        (50.0, None, 10**15, "up to 1,620 tokens and unknown gas a day"),
        (None, 5, 10**15, "unknown: this machine's speed is not measured"),
        (50.0, 5, 0, "unknown: the pool pays nothing for a unit"),
    ],
)
async def test_a_dry_run_says_what_a_day_comes_to_or_that_nobody_knows(
    speed: float | None, gas: int | None, reward: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine draws 50 tokens a second of a model of the run's size, nine hours a day."""
    run = needing(monkeypatch, 2 * 10**6)
    known = None if speed is None else Speed(speed, 100.0, "x/float32/sdpa", 10**6)
    monkeypatch.setattr("node.preflight.survey.recall", lambda *_: known)
    survey = PreflightSurvey(config(tmp_path, {"hours": "22:00-07:00", "time_zone": "UTC"}), Scope())
    pool: Any = SimpleNamespace(reward_per_unit=reward)
    chain: Any = Gas(gas)
    found = await survey._estimate(chain, pool, run)
    assert (found.name, found.level) == ("earning", "ok") and says in found.what
