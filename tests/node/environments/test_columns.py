"""Rows whose columns have names of their own, and what a run says beside its rows."""

import json
from pathlib import Path
from typing import Any

import pytest

from node.environments.columns import with_named_columns
from node.environments.dataset import Arguments, collect, count_long_rows, load
from node.environments.errors import DatasetError
from tests.node.environments.tokens import Characters


def said(**columns: str) -> Arguments:
    return Arguments(path="d.jsonl", **columns)


@pytest.mark.parametrize(
    ("row", "columns", "read"),
    [
        ({"Q": "1+1?", "Final": "2"}, {"prompt_column": "q", "answer_column": "final"}, ("question", "answer")),
        (
            {"task": "1+1?", "cot": "so \\boxed{2}"},
            {"prompt_column": "task", "answer_column": "cot"},
            ("problem", "solution"),
        ),
        (
            {"question": "no", "real": "1+1?", "answer": "2"},
            {"prompt_column": "real", "answer_column": "answer"},
            ("question", "answer"),
        ),
        ({"question": "1+1?", "result": "2"}, {"answer_column": "result"}, ("question", "answer")),
        ({"problem": "1+1?", "answer": "2"}, {"prompt_column": "problem"}, ("question", "answer")),
    ],
)
def test_named_columns_are_read_as_a_published_form(
    row: dict[str, Any], columns: dict[str, str], read: tuple[str, str], tmp_path: Path
) -> None:
    assert set(with_named_columns(row, said(**columns))) == set(read)
    (tmp_path / "d.jsonl").write_text(json.dumps(row) + "\n")
    rows = collect(tmp_path / "d.jsonl", said(**columns))
    (problem,) = rows.training + rows.held_back
    assert problem.prompt == "1+1?" and problem.answer[-1] == "2"


def test_a_chat_holds_prompt_and_answer() -> None:
    chat = [("system", "be brief"), ("human", "1+1?"), ("gpt", "so #### 2")]
    for role, content in (("role", "content"), ("from", "value")):
        row = {"id": 7, "conversations": [{role: who, content: text} for who, text in chat]}
        found = with_named_columns(row, said(messages_column="conversations"))
        assert found["answer"] == "2" and found["id"] == 7
        assert [one["role"] for one in found["prompt"]] == ["system", "user"]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"prompt_column": "questoin"}, "did you mean 'question'"),
        ({"answer_column": "zzz"}, "there is no column 'zzz'; it has question, answer"),
        ({"messages_column": "question"}, "no list of messages"),
    ],
)
def test_a_column_that_is_not_there_is_told_once(columns: dict[str, str], words: str, tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text((json.dumps({"question": "1+1?", "answer": "2"}) + "\n") * 30)
    with pytest.raises(DatasetError) as error:
        collect(tmp_path / "d.jsonl", said(**columns))
    assert words in error.value.why
    assert error.value.findings and error.value.findings.total == 30 and len(error.value.findings.worst) == 1


def written(folder: Path, count: int = 60) -> Path:
    rows = ({"question": "1" * (n % 6 + 1) + "+1=", "answer": str(n), "id": f"{n}"} for n in range(count))
    (folder / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "d.jsonl"


def test_an_instruction_stands_behind_each_prompt_and_moves_no_problem(tmp_path: Path) -> None:
    written(tmp_path)
    before, after = (load(said(**more), tmp_path, Characters()) for more in ({}, {"instruction": "Say it."}))
    assert after.problem(0).prompt == before.problem(0).prompt + "\nSay it."
    assert [before.held_back_problem(0).problem_id] == [after.held_back_problem(0).problem_id]


def test_a_system_prompt_is_for_rows_without_one(tmp_path: Path) -> None:
    chats = [
        [{"role": "user", "content": "1+1"}],
        [{"role": "system", "content": "own"}, {"role": "user", "content": "2"}],
    ]
    rows = [{"prompt": chat, "answer": "2"} for chat in chats]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = collect(tmp_path / "d.jsonl", said(template="chat", system_prompt="ours"))
    assert sorted(one.before[0] for one in found.training + found.held_back) == [("system", "ours"), ("system", "own")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"system_prompt": "x"}, "stand in a chat"),
        ({"chat_template_kwargs": "{}"}, "stand in a chat"),
        ({"template": "chat", "chat_template_kwargs": "[1]"}, "no JSON object"),
        ({"long_prompts": "maybe"}, "long_prompts"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, str], words: str, tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(DatasetError, match=words):
        load(said(**arguments), tmp_path, Characters())


def test_long_prompts_are_left_out_and_everybody_leaves_out_the_same(tmp_path: Path) -> None:
    path = written(tmp_path)
    count = count_long_rows(path, {"long_prompts": "skip"}, Characters(), 6)
    assert count == 30
    kept = load(said(held_back_share=0.3, long_prompts="skip", most_tokens=6, long_rows=count), tmp_path, Characters())
    assert kept.size + kept.held_back == 30
    with pytest.raises(DatasetError, match="read otherwise here"):
        load(said(held_back_share=0.3, long_prompts="skip", most_tokens=6, long_rows=count - 1), tmp_path, Characters())


def test_a_directory_of_files_is_one_data_set_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for part in (1, 0):
        rows = ({"question": f"{part}+{n}=", "answer": str(part + n)} for n in range(30))
        (tmp_path / "d" / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = load(Arguments(path="d"), tmp_path, Characters())
    assert found.size + found.held_back == 60 and found.problem(0).prompt.startswith("0+")
