"""Sample answers: the first evaluation's and the newest one's, cut and cleaned of what the model wrote into them."""

import json
from pathlib import Path

from node.web.page.page import RolloutSamples

SHOWN = 6
LONGEST = 600

HOSTILE = "<script>alert(1)</script>\u202e\x1b[2J" + "A" * 5000


def write(directory: Path, step: int, *answers: object) -> None:
    place = directory / "spool" / "eval"
    place.mkdir(parents=True, exist_ok=True)
    (place / f"answers-{step:06d}.json").write_text(json.dumps(answers))


def answer(text: str, reward: object = 1.0) -> dict[str, object]:
    return {"prompt": "sort 3 1", "answer": text, "reward": reward, "length": 4, "target": None, "finished": True}


def test_the_first_and_the_newest_evaluation_are_told(tmp_path: Path) -> None:
    samples = RolloutSamples(tmp_path)
    assert samples.look() is None
    write(tmp_path, 0, answer("3 1", 0.0))
    only = samples.look()
    assert only is not None and only["after"] is None and only["before"]["step"] == 0
    for step in (5, 20):
        write(tmp_path, step, answer("1 3"))
    told = samples.look()
    assert told is not None
    assert [(told[name]["step"], told[name]["answers"][0]["answer"]) for name in ("before", "after")] == [
        (0, "3 1"),
        (20, "1 3"),
    ]


def test_what_the_model_wrote_is_short_and_visible(tmp_path: Path) -> None:
    write(tmp_path, 0, *[answer(HOSTILE, "much")] * 50)
    told = RolloutSamples(tmp_path).look()
    assert told is not None and len(told["before"]["answers"]) == SHOWN
    shown = told["before"]["answers"][0]
    assert shown["answer"].isprintable() and len(shown["answer"]) == LONGEST and shown["reward"] is None


def test_a_damaged_file_costs_its_own_answers_only(tmp_path: Path) -> None:
    write(tmp_path, 0, answer("3 1"))
    write(tmp_path, 7, answer("1 3"))
    (tmp_path / "spool" / "eval" / "answers-000007.json").write_bytes(b"\xff{")
    told = RolloutSamples(tmp_path).look()
    assert told is not None
    assert told["after"] == {"step": 7, "answers": []} and told["before"]["answers"]
