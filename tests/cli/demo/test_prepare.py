"""What the demo does before its first node starts; its programs are only noted here, and say what a machine would."""

import json
from pathlib import Path

import pytest

from cli.demo.cast import DemoOptions, Scene
from cli.demo.prepare import MEASURED_TOO, OWN_RUN, _rules_in, teach_and_measure, write_run
from cli.demo.supervise import SupervisedProcess, SupervisedProgram
from cli.demo.view import PlainView
from node.run.file import load_run_file

OWN = load_run_file(OWN_RUN).verification


class Ended:
    pid = 1

    def poll(self) -> int:
        return 0


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
        program.log.write_text(json.dumps([name] if "wish" in program.command[2] else {"accuracy": 0.3}))
        return Ended()

    await teach_and_measure(run, options, scene, {}, spawn, PlainView(said.append))
    measures = name.startswith("riscv")
    assert ("cli calibrate" in ran) == measures == any("measuring what is honest" in line for line in said)
    assert load_run_file(scene.run_file).verification.admits(name) != measures
