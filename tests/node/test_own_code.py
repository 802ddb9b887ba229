"""Functions of one's own, loaded from the run's assets; errors name the path, the function and the line."""

from pathlib import Path

import pytest

from node.own_code import OwnCodeError, calling, load_function


@pytest.fixture
def assets(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    return tmp_path


def write(assets: Path, source: str, name: str = "mine") -> None:
    (assets / "code" / f"{name}.py").write_text(source)


def test_the_function_is_that_of_the_asset_and_not_of_an_installed_module(assets: Path) -> None:
    write(assets, "def dumps(value):\n    return 'ours'\n", "json")
    assert load_function("json:dumps", assets)(3) == "ours"
    import json

    assert json.dumps(3) == "3"


def test_a_module_may_define_dataclasses(assets: Path) -> None:
    """They look their own module up by its name."""
    write(
        assets, "import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: 'int' = 3\ndef f():\n    return A().x\n"
    )
    assert load_function("mine:f", assets)() == 3


def test_an_edited_source_is_loaded_anew(assets: Path) -> None:
    write(assets, "def f():\n    return 1\n")
    assert load_function("mine:f", assets)() == 1
    write(assets, "def f():\n    return 2 + 20\n")
    assert load_function("mine:f", assets)() == 22


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def scored(): ...", "did you mean 'scored'"),
        ("score = 3", "of type int"),
        ("import nothing_of_that_name", "ModuleNotFoundError"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_source_that_cannot_be_used_is_named(assets: Path, source: str, message: str) -> None:
    write(assets, source)
    with pytest.raises(OwnCodeError) as caught:
        load_function("mine:score", assets)
    said = f"{caught.value.what} {caught.value.why} {caught.value.remedy}"
    assert message in said and "mine:score" in said


def test_a_function_that_raises_is_named_with_its_line(assets: Path) -> None:
    write(assets, "def f(a):\n    b = a\n    return b / 0\n")
    with pytest.raises(OwnCodeError, match=r"mine:f failed.*ZeroDivisionError.*code/mine.py, line 3"):
        calling("mine:f", load_function("mine:f", assets), 1, wanted="a number")
