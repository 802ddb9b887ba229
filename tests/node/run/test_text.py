"""Text of a run that pre-trains: made into streams once, and everything that cannot be learnt from."""

import json
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from node.errors import RunFileError
from node.run.file import compile_run, load_run_file
from node.run.problems import TextFacts, check_run
from node.run.survey import survey
from node.run.text import TOKENS
from protocol.run import decode_run
from protocol.text import StreamHeader, tokens_of
from tests.node.training.texts import spool_of, write_texts


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    pytest.importorskip("torch")
    return write_texts(tmp_path)


def stream(path: Path) -> tuple[StreamHeader, list[int]]:
    header, tokens = tokens_of(path.read_bytes())
    return header, tokens.tolist()


def rewritten(run_file: Path, old: str, new: str) -> Path:
    run_file.write_text(run_file.read_text().replace(old, new))
    return run_file


def test_streams_are_files_of_the_run_and_a_swarm_takes_it(run_file: Path) -> None:
    run = compile_run(run_file, desk=True)
    paths = [asset.path for asset in run.spec.assets]
    assert "text/counting.tokens" in paths and "text/letters.tokens" in paths
    assert run.spec.pretraining and run.spec.pretraining.data[0].file == "text/counting.tokens"
    assert decode_run(run.encoded, desk=True) == run.spec
    assert run.spec.diloco and decode_run(run.encoded) == run.spec
    in_parts = msgspec.structs.replace(run.spec.diloco, inner_steps=4, stretch=0, fragments=2)
    msgspec.structs.replace(run.spec, diloco=in_parts).check()
    facts = check_run(run)
    assert [part.share for part in facts.parts] == [0.75, 0.25]
    assert [part.annealing for part in facts.parts if isinstance(part, TextFacts)] == [0.5, 0.5]


def test_more_fragments_than_tensors_are_told_with_their_number_before_a_node_starts(run_file: Path) -> None:
    from node.training.errors import TrainingError
    from node.training.pretrainer import Pretrainer
    from node.training.settings import TrainerSettings
    from node.training.world import World

    rewritten(run_file, "inner_steps = 4", "inner_steps = 64\nfragments = 64")
    rewritten(run_file, "stretch = 2", "stretch = 0")
    with pytest.raises(RunFileError, match="fragments = 64 leaves rounds nothing") as raised:
        check_run(compile_run(run_file, desk=True))
    tensors = int(raised.value.remedy.split()[3].rstrip(","))
    assert f"the model has {tensors} tensors" in raised.value.why and survey(run_file).findings.total == 1
    # What is told is what the learner counts: with as many as there are it begins, with one more it does not.
    spec = compile_run(run_file, desk=True).spec
    for fragments, begins in ((tensors, True), (tensors + 1, False)):
        rules = msgspec.structs.replace(spec.diloco, fragments=fragments, inner_steps=fragments)
        many = msgspec.structs.replace(spec, diloco=rules)
        with nullcontext() if begins else pytest.raises(TrainingError, match="leaves rounds nothing"):
            Pretrainer(spool_of(compile_run(run_file, desk=True), run_file.parent), many, TrainerSettings(), World())


def test_a_stream_is_made_again_when_text_or_tokenizer_change(run_file: Path) -> None:
    compile_run(run_file, desk=True)
    path = run_file.with_name("letters.txt" + TOKENS)
    made = path.stat().st_mtime_ns
    compile_run(run_file, desk=True)
    assert path.stat().st_mtime_ns == made
    run_file.with_name("letters.txt").write_text("another text\n" * 100)
    root = compile_run(run_file, desk=True).root
    header, tokens = stream(path)
    assert path.stat().st_mtime_ns != made and len(tokens) == header.tokens == 1301 and tokens[-1] == header.end
    tokenizer = run_file.parent / "model" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + " ")
    assert compile_run(run_file, desk=True).root != root and stream(path)[0].tokenizer != header.tokenizer


def test_documents_come_from_lines_tables_and_whole_files(run_file: Path) -> None:
    texts = ["één", "two\nlines", "3" * 300]
    folder = run_file.parent
    (folder / "a.jsonl").write_text("\n\n".join(json.dumps({"text": text}) for text in texts), encoding="utf-8")
    pq.write_table(pa.table({"text": texts, "other": [1, 2, 3]}), folder / "a.parquet")
    found = []
    for name in ("a.jsonl", "a.parquet"):
        rewritten(run_file, "counting.jsonl" if name == "a.jsonl" else "a.jsonl", name)
        compile_run(run_file, desk=True)
        found.append(stream(folder / (name + TOKENS))[1])
    assert found[0] == found[1] and found[0].count(1) == 3
    assert len(found[0]) == sum(len(text.encode()) + 1 for text in texts)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("letters.txt", b"abc \xe9 def" * 50, "byte 4 is no UTF-8"),
        ("letters.txt", b"too short", "rows of 16, and 8 are held back"),
        ("letters.txt", b"", "nothing is left"),
        ("counting.jsonl", b'{"text": "good"}\n{"text": 3}\n', "line 2"),
        ("counting.jsonl", b'{"text": "good"}\nno json\n', "line 2"),
        ("counting.jsonl", b'{"text": "good"}\n{"text": "\xff"}\n', "of line 2 is no UTF-8"),
        ("counting.jsonl", b"\n\n", "no text in it"),
    ],
)
def test_text_that_cannot_be_learnt_from_says_why(run_file: Path, name: str, data: bytes, words: str) -> None:
    run_file.with_name(name).write_bytes(data)
    with pytest.raises(RunFileError) as caught:
        check_run(compile_run(run_file, desk=True))
    assert words in f"{caught.value.what} {caught.value.why}" and caught.value.remedy


def test_a_ready_stream_must_be_of_the_models_tokenizer(run_file: Path) -> None:
    compile_run(run_file, desk=True)
    ready = run_file.with_name("letters.txt" + TOKENS)
    data = bytearray(ready.read_bytes())
    rewritten(run_file, 'file = "letters.txt"', 'file = "ready.tokens"')
    for at, value, words in ((30, 1, "another tokenizer"), (0, 0, "it is none"), (-1, 255, "of a vocabulary of")):
        broken = bytearray(data)
        broken[at] = value
        run_file.with_name("ready.tokens").write_bytes(broken)
        with pytest.raises(RunFileError) as caught:
            check_run(compile_run(run_file, desk=True))
        assert words in caught.value.why
    run_file.with_name("ready.tokens").write_bytes(data)
    check_run(compile_run(run_file, desk=True))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("weight = 3", "weight = 0\n[[pretraining.data]]", "`name`"),
        ("weight = 3", "wait = 3", "is not a setting"),
        ('name = "letters"', 'name = "counting"', "must differ"),
        ("sequence = 16", "sequence = 24", "multiple of pretraining.sequence"),
        ("sequence = 16", "sequence = 0", "2 to 1048576 tokens"),
        ("[recipe]", "[rollout]\ngroup_size = 4\n[recipe]", "rollout"),
        ("[recipe]", "[recipe]\nlearning_rate = 1e-3", "recipe.learning_rate"),
        ("[pretraining]", 'dataset = "x.jsonl"\n[pretraining]', "leave one of the two out"),
        ('"counting.jsonl"', '"absent.jsonl"', "no text at"),
        ("[diloco]", '[diloco]\nexchange = "int3"', "exchange"),
        ("[diloco]", "[diloco]\nmin_contributions = 5", "min_contributions"),
    ],
)
def test_a_run_file_with_a_mistake_names_it(run_file: Path, old: str, new: str, words: str) -> None:
    rewritten(run_file, old, new)
    with pytest.raises(RunFileError) as caught:
        compile_run(run_file, load_run_file(run_file), desk=True)
    assert words in " ".join((caught.value.what, caught.value.why, caught.value.remedy))


def test_a_survey_finds_every_mistake_of_a_run_that_pre_trains(run_file: Path) -> None:
    found = survey(run_file)
    assert (
        not found.findings.total
        and found.facts
        and [one.label for one in found.facts.parts]
        == [
            "counting",
            "letters",
        ]
    )
    run_file.with_name("letters.txt").write_text("too short")
    rewritten(run_file, '"counting.jsonl"', '"absent.jsonl"')
    rewritten(run_file, "weight = 3", "weight = 0.5\nwait = 4")
    rewritten(run_file, "sequence = 16", "sequence = 0")
    rewritten(run_file, "held_back = 8", "held_back = 80")
    rewritten(run_file, "inner_steps = 4", 'inner_steps = "four"')
    (run_file.parent / "model" / "model.safetensors").write_bytes(b"torn")
    run_file.write_text(f"{run_file.read_text()}learning_rate = 1e-3\n[environment]\nname = 'sort'\n")
    found = survey(run_file)
    assert found.compiled is None and found.facts is None
    told = [f"{one.what} {one.remedy}" for one in found.findings.first]
    for words in (
        "'wait' is not a setting",
        "Expected `int`, got `str`",
        "Expected `int`, got `float` - at `$.pretraining.data[0].weight`",
        "leave one of the two out",
        "no text at",
        "2 to 1048576 tokens",
        "recipe.learning_rate",
        "model.safetensors",
        "80 are held back",
    ):
        assert sum(words in one for one in told) == 1, (words, told)
    assert found.findings.total == 9
