"""Calibration over several machines: files by root, and what strangers may have written into them."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from node.calibration.between import Export, MachineLooks, VerifiedAnswer, VerifierLook, export, gather, look, subject
from node.calibration.calibrate import CalibrationPlan, derive
from node.environments.base import Environment
from node.environments.registry import load_environment
from node.errors import RunFileError
from node.inference import settings as machine
from node.inference.settings import EngineSettings
from node.inference.tokenizer import LocalTokenizer
from protocol.engines import pair
from protocol.run import RunSpec

SETTINGS = [EngineSettings()]
MADE: dict[tuple[str, int, bool], bytes] = {}
"""Exports are functions of these: each is made once."""


def quiet(*_: object) -> None:
    """What nobody wants to hear."""


class Site:
    """A run, and machines that differ in their names."""

    def __init__(self, run: RunSpec, assets: Path, environment: Environment, patch: pytest.MonkeyPatch) -> None:
        self.run, self.model, self.environment, self._patch = run, assets / "model", environment, patch

    def on(self, name: str) -> str:
        self._patch.setattr(machine, "hardware", lambda device: name)
        return EngineSettings().name

    def export(self, name: str, *, seed: int = 0, cheats: bool = True) -> bytes:
        self.on(name)
        plan = CalibrationPlan(SETTINGS, samples=16, seed=seed)
        if (name, seed, cheats) not in MADE:
            MADE[name, seed, cheats] = export(self.run, self.model, self.environment, plan, quiet, cheats=cheats)
        return MADE[name, seed, cheats]

    def look(self, name: str, *files: bytes) -> bytes:
        self.on(name)
        return look(self.run, self.model, self.environment, SETTINGS, files, quiet)


@pytest.fixture
def site(tiny_run: RunSpec, tiny_assets: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    environment = load_environment(tiny_run.environment, tiny_assets, LocalTokenizer(tiny_assets / "model"))
    rollout = msgspec.structs.replace(tiny_run.rollout, max_output_tokens=12)
    return Site(msgspec.structs.replace(tiny_run, rollout=rollout), tiny_assets, environment, monkeypatch)


def test_two_machines_are_calibrated_by_files(site: Site) -> None:
    here, there = (site.on(name) for name in ("a", "b"))
    works = [site.export("a"), site.export("b", seed=1, cheats=False)]
    measured = gather(site.run, [site.look("a", *works), site.look("b", *works)])
    assert set(measured.honest) == {pair(a, b) for a in (here, there) for b in (here, there)}
    assert measured.maker == here and set(measured.cheating) >= {"int8", "greedy"}
    assert {name.partition(">")[2] for name in measured.crossed} == {there}
    rules = derive(site.run, measured, 0, quiet).verification
    assert set(rules.engines) == set(rules.admitted) == {here, there}
    assert not rules.admits(site.on("sm100"))


def test_more_exports_of_one_machine_are_more_samples(site: Site) -> None:
    works = [site.export("a"), site.export("a", seed=1, cheats=False)]
    measured = gather(site.run, [site.look("a", *works)])
    (samples,) = measured.honest.values()
    assert len(samples) == 32


def test_a_machine_that_did_not_look_at_all_work_is_named(site: Site) -> None:
    works = [site.export("a"), site.export("b", cheats=False)]
    looks = [site.look("a", *works), site.look("b", works[1])]
    with pytest.raises(RunFileError) as caught:
        gather(site.run, looks)
    assert "nobody looked at the work of a/float32" in caught.value.why and " by b/float32" in caught.value.why


def test_one_look_twice_and_looks_without_cheats_are_refused(site: Site) -> None:
    work = site.export("a", cheats=False)
    looks = site.look("a", work)
    with pytest.raises(RunFileError, match="cannot be used") as caught:
        gather(site.run, [looks, looks])
    assert "twice" in caught.value.why
    with pytest.raises(RunFileError) as caught:
        gather(site.run, [looks])
    assert "cheats" in caught.value.why
    with pytest.raises(RunFileError):
        gather(site.run, [])


def changed(data: bytes, kind: type[Any], **fields: Any) -> bytes:
    return msgspec.msgpack.encode(msgspec.structs.replace(msgspec.msgpack.decode(data, type=kind), **fields))


def test_an_export_that_no_engine_can_have_made_is_refused(site: Site) -> None:
    good = site.export("a", cheats=False)
    (name, made), *_ = msgspec.msgpack.decode(good, type=Export).honest.items()

    def with_first(**fields: Any) -> bytes:
        return changed(good, Export, honest={name: [msgspec.structs.replace(made[0], **fields), *made[1:]]})

    hostile = [
        b"",
        good[:-1],
        site.look("a", good),
        changed(good, Export, subject="0" * 64),
        changed(good, Export, version=2),
        changed(good, Export, seed=-1),
        changed(good, Export, maker="b/float32/sdpa"),
        changed(good, Export, honest={"no class": made}, maker="no class"),
        changed(good, Export, honest={name: made[:1]}),
        changed(good, Export, cheating={"../../etc": made}),
        with_first(output=[]),
        with_first(output=[1 << 40]),
        with_first(output=[-1]),
        with_first(output=made[0].output * 1000),
        with_first(segments=[1, 2]),
        with_first(experts=b"\0\1"),
        with_first(proofs=made[0].proofs + b"x"),
        with_first(proofs=bytes(len(made[0].proofs)) + b"x"),
    ]
    for data in hostile:
        with pytest.raises(RunFileError):
            site.look("a", data)


def test_a_look_with_hostile_numbers_is_refused(site: Site) -> None:
    good = site.look("a", site.export("a"))
    gather(site.run, [good])
    looks = msgspec.msgpack.decode(good, type=MachineLooks).looks
    first = looks[0].samples[0]
    nan, far = b"\x00" * 6 + b"\xf8\x7f", b"\x00" * 6 + b"\xf0\x41"

    def with_sample(**fields: Any) -> VerifierLook:
        samples = [msgspec.structs.replace(first, **fields), *looks[0].samples[1:]]
        return msgspec.structs.replace(looks[0], samples=samples)

    hostile = [
        with_sample(errors=[(-1, 0.0, 0.0)] * len(first.errors)),
        with_sample(errors=[(10**9, 0.0, 0.0)] * len(first.errors)),
        with_sample(errors=[(0, float("nan"), 0.0)] * len(first.errors)),
        with_sample(errors=[(0, 0.0, -1.0)] * len(first.errors)),
        with_sample(errors=[*first.errors, (0, 0.0, 0.0)]),
        with_sample(distances=nan + first.distances[8:]),
        with_sample(distances=far + first.distances[8:]),
        with_sample(distances=first.distances[:-1]),
        with_sample(distances=bytes(8 * 10**6)),
        with_sample(distances=b""),
        with_sample(routing=-0.1),
        with_sample(routing=float("nan")),
        msgspec.structs.replace(looks[0], samples=looks[0].samples[:1]),
        msgspec.structs.replace(looks[0], verifier="A/B/C"),
        msgspec.structs.replace(looks[0], way="Greedy!"),
    ]
    for one in hostile:
        with pytest.raises(RunFileError):
            gather(site.run, [changed(good, MachineLooks, looks=[one, *looks[1:]])])
    assert VerifiedAnswer([], b"") != first


def test_what_is_measured_decides_what_a_file_is_about(tiny_run: RunSpec) -> None:
    other = msgspec.structs.replace(tiny_run, name="another name")
    assert subject(other) == subject(tiny_run)
    warmer = msgspec.structs.replace(tiny_run, rollout=msgspec.structs.replace(tiny_run.rollout, temperature=0.7))
    assert subject(warmer) != subject(tiny_run)
