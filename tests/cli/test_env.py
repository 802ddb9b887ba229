"""`intellect-node env`: what it writes, checks, publishes and lists."""

import json
from pathlib import Path
from typing import Any

import pytest

from cli.errors import RUN, USAGE
from cli.main import main
from node.environments.package import check
from node.environments.package.archive import root_of
from node.environments.package.check import PlayWay
from node.environments.package.templates import KINDS
from tests.node.environments.sandboxes import OpenSandbox


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INTELLECT_NODE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check, "all_ways", lambda **_: [PlayWay("here", "one", OpenSandbox)])
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["env", *words, "--json"]) == code
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_new_environment_is_checked_published_and_listed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "new", "my-env")["file"] == "my_env.py"
    report = told(capsys, "check", "my_env.py", "--rows", "2")
    assert report["good"] and (report["name"], report["class"], report["checked"]) == ("my-env", "exact", 2)
    published = told(capsys, "publish", "my_env.py", "--mirror", "web", "--state-dir", "node")
    root = published["root"]
    assert root == report["root"] == root_of((place / "web" / f"{root}.tar").read_bytes())
    assert (place / "node" / "blobs" / "complete" / root).read_bytes() == Path(published["path"]).read_bytes()
    listed = told(capsys, "list")
    assert [one["root"] for one in listed["packages"]] == [root]
    assert {"sort", "dataset"} <= {one["name"] for one in listed["built_in"]}
    assert {"name": "prime_rl_code"}.items() <= next(t for t in listed["task_types"] if "prime" in t["name"]).items()
    for words in (["list"], ["check", root, "--rows", "1"], ["publish", root]):
        assert main(["env", *words]) == 0
        assert root in capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_written_and_nothing_is_overwritten(place: Path, kind: str) -> None:
    assert main(["env", "new", "mine", "--kind", kind, "--out", "a/b.py"]) == 0
    assert "env check a/b.py" in (place / "a" / "b.py").read_text() and "NAME" not in (place / "a" / "b.py").read_text()
    assert main(["env", "new", "mine", "--out", "a/b.py"]) != 0
    assert main(["env", "new", "mine", "--out", "a/b.py", "--force"]) == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["new", "mine", "--kind", "multiturn"], "did you mean 'multi-turn'"),
        (["new", "sort"], "built-in"),
        (["new", "../x"], "lower-case"),
    ],
)
def test_wrong_words_are_told_the_right_ones(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", *words]) == USAGE
    assert says in capsys.readouterr().err


def test_a_check_draws_anew_each_time_and_again_the_same_by_the_seed_that_it_printed(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["env", "new", "mine"]) == 0
    text = (place / "mine.py").read_text()
    rows = "return [{'id': str(n), 'capital': 'Paris'} for n in range(300)]\n    return [{"
    (place / "mine.py").write_text(
        text.replace("return [{", rows).replace('return row["capital"]', 'return "no " + row["id"]')
    )
    one, two = (told(capsys, "check", "mine.py", "--rows", "3", code=RUN) for _ in range(2))
    again = told(capsys, "check", "mine.py", "--rows", "3", "--seed", one["seed"], code=RUN)
    drawn = [[finding["row"] for finding in report["findings"]] for report in (one, two, again)]
    assert drawn[0] == drawn[2] != drawn[1] and len(drawn[0]) == 3 and one["swept"] == 300
    assert main(["env", "check", "mine.py", "--rows", "1", "--seed", "abc"]) == RUN
    assert "--seed abc" in capsys.readouterr().out


def test_an_unfit_environment_ends_with_the_row_and_a_remedy(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "new", "mine"]) == 0
    code = (place / "mine.py").read_text().replace('return row["capital"]', 'return "\\x1b[31m"')
    (place / "mine.py").write_text(code)
    assert main(["env", "check", "mine.py", "--rows", "1"]) == RUN
    seen = capsys.readouterr()
    assert "why: row " in seen.err and "golden(row)" in seen.err and "\x1b[31m" not in seen.err
    (place / "link.py").symlink_to(place / "mine.py")
    for words in (["check", "link.py"], ["publish", "none.py"], ["publish", "0" * 64]):
        assert main(["env", *words]) == RUN
