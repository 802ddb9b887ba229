from pathlib import Path

import pytest

from cli.main import main
from cli.weights_serve import Fetched, Place, follow
from node.weights.records import RECORD_NAME
from protocol.errors import IntellectError

SILENCE = IntellectError("no policy was announced", "nobody answers", "try again later")


class Pool:
    """Answers, one look after the other, with a policy's step or with what went wrong."""

    def __init__(self, *answers: int | IntellectError, last: int = 9) -> None:
        self._answers = list(answers)
        self._last = last
        self.written: list[int] = []
        self.pauses = 0

    def fetch(self, place: Place) -> Fetched:
        answer = self._answers.pop(0)
        if isinstance(answer, IntellectError):
            raise answer
        target = place(answer)
        if target is not None:
            target.mkdir()
            (target / RECORD_NAME).write_text(str(answer))
            self.written.append(answer)
        return Fetched(answer, answer == self._last)

    def sleep(self, seconds: float) -> None:
        self.pauses += 1


def test_the_newest_model_is_always_behind_one_name(tmp_path: Path) -> None:
    out, pool, said = tmp_path / "out", Pool(3, 3, 4, SILENCE, 7, 9), []
    (out / "step-1").mkdir(parents=True)
    (out / "step-1" / "notes.txt").touch()
    follow(out, pool.fetch, said.append, pool.sleep)
    assert pool.written == [3, 4, 7, 9] and pool.pauses == 5, "a policy that is there is not written again"
    assert (out / "newest" / RECORD_NAME).read_text() == "9"
    assert sorted(path.name for path in out.iterdir()) == ["newest", "step-00000007", "step-00000009", "step-1"]
    assert said == ["no policy was announced: nobody answers; asking again"]

    again = Pool(9)
    follow(out, again.fetch, said.append, again.sleep)
    assert again.written == [], "what an earlier call fetched is used"


def test_a_first_policy_that_cannot_be_had_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(IntellectError, match="no policy"):
        follow(tmp_path / "out", Pool(SILENCE).fetch, print, Pool().sleep)


def test_a_step_that_is_named_cannot_be_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", "fetch", "--out", str(tmp_path / "out"), "--follow", "--step", "3"]) == 2
    assert "leave --step out" in capsys.readouterr().err


def test_http_alone_needs_a_gateway_to_ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", "fetch", "--out", str(tmp_path / "out"), "--only-http"]) == 2
    assert "give --source" in capsys.readouterr().err
