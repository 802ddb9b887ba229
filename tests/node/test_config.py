from typing import get_args

import pytest
from pydantic import ValidationError

from node.config import EngineName, NodeConfig, api_socket_path
from node.inference.engines import AUTO, ENGINES


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("INTELLECT_NODE_HOME", str(tmp_path))
    return tmp_path


def test_a_flag_beats_the_environment_which_beats_the_file(home, monkeypatch) -> None:
    (home / "config.toml").write_text('role = "validator"\nunits = 3\nstake = 7\n')
    monkeypatch.setenv("INTELLECT_NODE_UNITS", "4")
    monkeypatch.setenv("INTELLECT_NODE_STAKE", "8")
    config = NodeConfig(stake=9)
    assert (config.role, config.units, config.stake) == ("validator", 4, 9)


def test_an_unknown_setting_in_the_file_is_refused(home) -> None:
    (home / "config.toml").write_text("rolle = 1\n")
    with pytest.raises(ValidationError, match="rolle"):
        NodeConfig()


def test_the_password_is_not_shown() -> None:
    assert "hunter2" not in repr(NodeConfig(password="hunter2"))


@pytest.mark.parametrize("runtime", ["/run/user/1000", "/run/" + "deep" * 40])
def test_the_control_socket_fits_into_a_socket_address(runtime, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    deep = tmp_path / ("deep" * 40)
    assert len(str(api_socket_path(deep))) <= 100
    assert api_socket_path(deep) != api_socket_path(tmp_path)


def test_the_engine_that_is_chosen_is_told_to_whatever_program_runs_it() -> None:
    assert NodeConfig(engine="vllm").engine_argv[1:] == ["-m", "node.inference.process", "--engine", "vllm"]
    assert NodeConfig(engine="torch", engine_command="python x").engine_argv == ["python", "x", "--engine", "torch"]


def test_the_engines_that_may_be_configured_are_those_of_the_registry() -> None:
    assert {*get_args(EngineName)} == {AUTO, *ENGINES}


def test_another_engine_is_a_command_line() -> None:
    assert NodeConfig(engine_command="python -m x --flag 'a b'").engine_argv == ["python", "-m", "x", "--flag", "a b"]
    assert NodeConfig().engine_argv[1:] == ["-m", "node.inference.process"]
