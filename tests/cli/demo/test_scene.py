"""The demo's directory, lock, cast and run file."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.demo.cast import (
    DemoOptions,
    Scene,
    cast,
    cheats,
    chosen,
    engine_module,
    join_command,
    leaders,
    liars,
    quorum_of,
    round_liars,
    standbys,
)
from cli.demo.command import LEADERS as TOLD_LEADERS
from cli.demo.command import LIARS as TOLD_LIARS
from cli.demo.prepare import render_run, write_run
from cli.demo.story import _check_resume, demo_environment
from cli.errors import CommandError
from cli.main import app
from cli.places import directory_lock
from node.environments.server.dial import LOCAL_SERVERS
from node.errors import RunFileError
from node.run.file import load_run_file
from tests.cheats.catalogue import CHEATS
from tests.cheats.liars import LIARS
from tests.cheats.seats import ROUNDS, SEATS
from tests.cheats.trainers import LEADERS, STANDBYS


def test_a_second_demo_in_one_directory_is_refused_and_the_lock_is_gone_afterwards(tmp_path: Path) -> None:
    with directory_lock(tmp_path), pytest.raises(CommandError, match=f"process {os.getpid()} holds"):
        with directory_lock(tmp_path):
            pass
    with directory_lock(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_a_directory_with_other_files_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(CommandError, match=r"thesis\.tex"):
        Scene(tmp_path).claim()


def test_a_fresh_start_removes_what_the_last_demo_left_and_nothing_else(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.claim()
    scene.state_dir("worker 1").mkdir(parents=True)
    scene.run_file.touch()
    (tmp_path / "notes.txt").touch()
    scene.clear()
    scene.claim()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".intellect-node-demo", "notes.txt"]


def test_the_cast_is_one_trainer_one_validator_the_workers_and_the_cheat(tmp_path: Path) -> None:
    names = [one.name for one in cast(DemoOptions(tmp_path, workers=3))]
    assert names == ["trainer", "worker 1", "worker 2", "worker 3", "validator", "cheat"]
    assert not [one for one in cast(DemoOptions(tmp_path, cheats=())) if one.cheat]


def test_several_validators_and_cheats_are_numbered_and_more_than_half_decide(tmp_path: Path) -> None:
    options = DemoOptions(tmp_path, workers=1, validators=3, cheats=("int8", "zip-bomb"), liars=("silent",))
    assert [(one.name, one.cheat) for one in cast(options)][2:] == [
        ("validator 1", "silent"),
        ("validator 2", None),
        ("validator 3", None),
        ("cheat 1", "int8"),
        ("cheat 2", "zip-bomb"),
    ]
    assert [quorum_of(n) for n in range(1, 9)] == [1, 2, 2, 3, 3, 4, 4, 5]


def test_the_demos_cheats_are_those_of_the_catalogue_and_each_is_given_its_engine() -> None:
    assert list(cheats().values()) == list(CHEATS)
    assert list(liars().values()) == [*LIARS, *SEATS]
    assert list(round_liars().values()) == list(ROUNDS)
    assert list(leaders().values()) == list(LEADERS)
    assert list(standbys().values()) == list(STANDBYS)
    assert engine_module("step-k-1") == ["tests.cheats.catalogue", "step k-1"]
    assert engine_module("own-problems") == ["tests.cheats.own_problems"]
    assert engine_module("false-accuser") == ["tests.cheats.liars", "false accuser"]


def test_a_leader_that_cheats_is_the_first_of_the_trainers_and_another_program(tmp_path: Path) -> None:
    options = DemoOptions(tmp_path, trainers=2, leader="censor", cheats=())
    programs = {one.name: list(join_command(one, Scene(tmp_path), Path("net.toml"), 1))[2:4] for one in cast(options)}
    assert programs.pop("trainer") == ["tests.cheats.trainers", "censor"]
    assert {program[0] for program in programs.values()} == {"cli"}
    assert options.casting.leader == "censor", "a resumed demo would have the same"


def test_a_standby_that_cheats_is_the_first_that_stands_by_under_an_honest_leader(tmp_path: Path) -> None:
    options = DemoOptions(tmp_path, trainers=3, leader="framing-standby", cheats=())
    assert [one.cheat for one in cast(options) if one.role == "trainer"] == [None, "framing-standby", None]
    programs = {one.name: list(join_command(one, Scene(tmp_path), Path("net.toml"), 1))[2:4] for one in cast(options)}
    assert programs["standby 1"] == ["tests.cheats.trainers", "framing standby"] and programs["trainer"][0] == "cli"


def test_the_help_tells_of_each_liar_and_cheating_trainer_in_a_line() -> None:
    assert TOLD_LIARS.keys() == liars().keys() | round_liars().keys()
    assert TOLD_LEADERS.keys() == leaders().keys() | standbys().keys()


def test_a_cheat_may_be_written_as_in_the_catalogue_and_a_misspelt_one_is_told_the_nearest() -> None:
    assert chosen(["temperature 0.9", "NaN activations"], cheats(), "cheat") == ("temperature-0-9", "nan-activations")
    with pytest.raises(CommandError) as caught:
        chosen(["zipbomb"], cheats(), "cheat")
    assert "did you mean zip-bomb?" in caught.value.remedy


def test_a_demo_is_not_gone_on_with_by_other_validators(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.run_file.touch()
    scene.pool_file.touch()
    scene.state_dir("validator").mkdir(parents=True)
    _check_resume(DemoOptions(tmp_path, resume=True), scene)
    with pytest.raises(CommandError, match="other validators"):
        _check_resume(DemoOptions(tmp_path, validators=3, resume=True), scene)


def test_only_the_cheat_is_told_another_engine_and_only_the_trainer_the_run(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    commands = {
        one.name: list(join_command(one, scene, Path("net.toml"), 1)) for one in cast(DemoOptions(tmp_path, workers=1))
    }
    assert [name for name, command in commands.items() if "--engine-command" in command] == ["cheat"]
    assert [name for name, command in commands.items() if "--run" in command] == ["trainer"]
    assert len({tuple(command[command.index("--state-dir") + 1 :][:1]) for command in commands.values()}) == 4


def test_another_engine_is_for_honest_workers_alone(tmp_path: Path) -> None:
    scene, options = Scene(tmp_path), DemoOptions(tmp_path, workers=1, worker_engine="other -m engine")
    told = {
        one.name: list(join_command(one, scene, Path("net.toml"), 1, worker_engine=options.worker_engine))
        for one in cast(options)
    }
    assert [name for name, command in told.items() if "other -m engine" in command] == ["worker 1"]
    assert options.casting.worker_engine == "other -m engine", "a resumed demo would have the same"


def test_children_do_not_inherit_the_settings_of_the_users_own_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTELLECT_NODE_ROLE", "validator")
    monkeypatch.setenv(LOCAL_SERVERS, "1")
    environment = demo_environment(Scene(tmp_path))
    assert [name for name in environment if name.startswith("INTELLECT_NODE_")] == [
        LOCAL_SERVERS,
        "INTELLECT_NODE_HOME",
    ]
    assert environment["OMP_NUM_THREADS"] == "1"


def test_the_demos_own_run_takes_seed_and_steps_of_the_command_line(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    write_run(DemoOptions(tmp_path, steps=40, seed=7), scene)
    run = load_run_file(scene.run_file)
    assert (run.recipe.steps, run.recipe.seed, run.recipe.target_reward) == (40, 7, None)
    assert run.model == "model"
    assert write_run(DemoOptions(tmp_path), scene).recipe.target_reward == 0.7


def test_a_users_run_file_is_kept_word_for_word_with_its_paths_resolved(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    source = tmp_path / "mine" / "run.toml"
    source.write_text(
        'name = "a \\"quoted\\" run"\nmodel = "m"\ndataset = "d.jsonl"\n'
        '[environment]\nname = "dataset"\nargs = { template = "chat", held_back_share = 0.1 }\n'
        "[recipe]\nlearning_rate = 1e-6\n"
    )
    scene = Scene(tmp_path / "demo")
    scene.claim()
    written = write_run(DemoOptions(scene.directory, run_file=source), scene)
    assert load_run_file(scene.run_file) == written
    assert written.model == str(tmp_path / "mine" / "m")
    assert written.environment.args == {"template": "chat", "held_back_share": 0.1}
    assert "learning_rate = 1e-06" in render_run(written)


def test_a_mistake_in_a_users_run_file_is_named(tmp_path: Path) -> None:
    source = tmp_path / "run.toml"
    source.write_text('name = "x"\nmodle = "m"\n[environment]\nname = "sort"\n')
    with pytest.raises(RunFileError) as caught:
        write_run(DemoOptions(tmp_path, run_file=source), Scene(tmp_path))
    assert "model" in caught.value.remedy


def test_a_wrong_setting_is_told_before_there_is_a_chain_and_a_directory(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["demo", "--dir", str(tmp_path / "demo"), "--set", "recipe.stepz=3"])
    assert isinstance(found.exception, RunFileError) and "recipe" in found.exception.remedy
    assert not (tmp_path / "demo").exists()
