"""What the demo does before its first node starts; its programs are only noted here, and say what a machine would."""

import json
from pathlib import Path
from typing import Any

import pytest

from cli.demo.cast import DemoOptions, Scene
from cli.demo.prepare import MEASURED_TOO, OWN_RUN, _make_keys, _rules_in, teach_and_measure, write_run
from cli.demo.supervise import SupervisedProcess, SupervisedProgram
from cli.demo.view import PlainView
from cli.keyring import open_node_key
from node.run.file import load_run_file
from protocol.identity import Address

OWN = load_run_file(OWN_RUN).verification


class Ended:
    pid = 1

    def poll(self) -> int:
        return 0


async def test_two_demos_of_one_seed_have_the_same_addresses_and_no_other_has_them(tmp_path: Path) -> None:
    async def addresses(folder: str, **said: Any) -> dict[str, Address]:
        found = dict[str, Address]()
        await _make_keys(DemoOptions(tmp_path / folder, workers=1, cheats=(), **said), Scene(tmp_path / folder), found)
        assert {name: open_node_key(Scene(tmp_path / folder).state_dir(name)).address for name in found} == found
        return found

    one = await addresses("one", seed=7)
    assert list(one) == ["trainer", "worker 1", "validator"] and len(set(one.values())) == 3
    assert await addresses("again", seed=7) == one == await addresses("one", seed=7)
    for other in (await addresses("other", seed=8), await addresses("elsewhere", seed=7, network=tmp_path / "chain")):
        assert not set(other.values()) & set(one.values())


def test_each_class_was_measured_once() -> None:
    classes = [name for rules in (OWN, *map(_rules_in, MEASURED_TOO)) for name in rules.admitted]
    assert len(set(classes)) == len(classes) == 1 + len(MEASURED_TOO)


@pytest.mark.parametrize("name", [*_rules_in(MEASURED_TOO[0]).admitted, *OWN.admitted, "riscv/float32/sdpa"])
async def test_what_is_honest_is_measured_where_nobody_did(name: str, tmp_path: Path) -> None:
    scene, said, ran = Scene(tmp_path), list[str](), list[str]()
    scene.logs.mkdir(parents=True)
    options = DemoOptions(tmp_path, 1, 1, (), (), None, 0, None, resume=False)
    run = write_run(options, scene)

    async def spawn(program: SupervisedProgram) -> SupervisedProcess:
        ran.append(program.command[2] + "".join(f" {word}" for word in program.command[3:4]))
        program.log.write_text(json.dumps([name] if "options" in program.command[2] else {"accuracy": 0.3}))
        return Ended()

    await teach_and_measure(run, options, scene, {}, spawn, PlainView(said.append))
    measures = name.startswith("riscv")
    assert ("cli calibrate" in ran) == measures == any("measuring what is honest" in line for line in said)
    assert load_run_file(scene.run_file).verification.admits(name) != measures
