"""Names on the hub, with the hub's own client before a hub of ours."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save

from node import hub
from node.errors import RunFileError
from node.inference.weight_files import weight_files
from tests.hub import Hub, Repository, opened, ours
from tests.test_layering import below, imports, modules

pytest.importorskip("huggingface_hub")
WEIGHTS = save({"a": np.zeros((40, 50), np.float32), "b": np.ones(3, np.float16)})
MODEL = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": WEIGHTS, "README.md": b"a card"}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with opened() as made:
        ours(made, tmp_path, monkeypatch)
        yield made


def rows(*answers: int) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"question": ["?"] * len(answers), "answer": [f"#### {n}" for n in answers]}), file)
    return file.getvalue()


def name(text: str, kind: hub.Kind = "model") -> hub.Name:
    found = hub.read_name(text, kind)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("Qwen/Qwen3-0.6B", ("Qwen/Qwen3-0.6B", "", "")),
        ("hf:gpt2", ("gpt2", "", "")),
        (f"hf:a/b@{'c' * 40}#main/train", ("a/b", "c" * 40, "main/train")),
        ("a/b#test", ("a/b", "", "test")),
        ("model", None),
        ("my/rows.jsonl", None),
        ("a/b/c", None),
        ("../a", None),
        ("hf:a b", None),
    ],
)
def test_a_text_is_a_name_or_it_is_not(text: str, meant: tuple[str, str, str] | None) -> None:
    found = hub.read_name(text, "dataset")
    assert (found and (found.repository, found.revision, found.part)) == meant
    assert found is None or hub.read_name(str(found), "dataset") == found


def test_what_lies_there_wins_over_the_hub(tmp_path: Path) -> None:
    assert isinstance(hub.name_or_path("me/model", tmp_path, "model"), hub.Name)
    (tmp_path / "me" / "model").mkdir(parents=True)
    assert hub.name_or_path("me/model", tmp_path, "model") == tmp_path / "me" / "model"
    assert isinstance(hub.name_or_path("hf:me/model", tmp_path, "model"), hub.Name)
    assert hub.name_or_path("./me/nothing", tmp_path, "model") == tmp_path / "me" / "nothing"
    with pytest.raises(RunFileError, match="name too long"):
        hub.name_or_path("a" * 300, tmp_path, "model")


def test_a_model_is_fetched_once_and_without_what_nobody_reads(site: Hub) -> None:
    extra = {"consolidated.safetensors": WEIGHTS, "pytorch_model.bin": WEIGHTS, "picture.png": b"x"}
    commit = site.add("me/model", MODEL | extra, card={"license": "mit"})
    had = hub.have(name("me/model"))
    assert (had.name.revision, had.licence, had.checked) == (commit, "mit", 3)
    assert sorted(path.name for path in had.directory.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert (had.directory / "model.safetensors").read_bytes() == WEIGHTS
    site.asked.clear()
    again = hub.have(had.name, "here")
    assert (again.directory, again.checked, site.asked) == (had.directory, 0, [])
    assert hub.origin(had.directory, {p.name: p for p in had.directory.iterdir()}) == f"hf:me/model@{commit}"


def test_the_headers_of_weights_tell_what_weights_are_like(site: Hub) -> None:
    site.add("me/model", MODEL)
    had = hub.have(name("me/model"), "headers")
    assert weight_files(had.directory).numbers == 2003
    assert had.missing == len(WEIGHTS)
    ranges = [headers.get("range") for _, path, headers in site.asked if path.endswith(".safetensors")]
    assert ranges == ["bytes=0-100000"]
    assert hub.origin(had.directory, {p.name: p for p in had.directory.iterdir()}) == ""  # a hole is nobody's file


def test_where_money_is_near_nothing_is_asked(site: Hub) -> None:
    site.add("me/model", MODEL)
    with pytest.raises(hub.HubError, match="names no commit"):
        hub.have(name("me/model"), "here")
    pinned = hub.pin(name("me/model"))
    site.asked.clear()
    with pytest.raises(hub.HubError, match="is not here") as told:
        hub.have(pinned, "here")
    assert site.asked == [] and told.value.remedy == f"intellect-node get '{pinned}'"


def test_offline_takes_what_is_there_and_says_what_is_not(site: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants, hf_hub_download

    commit = site.add("me/model", MODEL)
    site.add("me/elsewhere", MODEL)
    hub.have(name("me/model"))
    for file in MODEL:  # by another program
        hf_hub_download("me/elsewhere", file)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    site.asked.clear()
    assert hub.have(name("me/model")).name.revision == commit
    theirs = hub.have(name("me/elsewhere"))
    assert theirs.checked == 3 and (theirs.directory / "model.safetensors").read_bytes() == WEIGHTS
    with pytest.raises(hub.HubError, match="cannot be fetched"):
        hub.have(name("me/other"))
    assert site.asked == []


# --- eight errors --------------------------------------------------------------------------------


def told(text: str, kind: hub.Kind = "model", reach: hub.Reach = "whole") -> str:
    with pytest.raises(RunFileError) as error:
        hub.have(name(text, kind), reach)
    return f"{error.value.what}. {error.value.why}. {error.value.remedy}"


def test_a_name_that_is_not_there_or_private(site: Hub) -> None:
    said = told("me/nothing")
    assert "there is no model me/nothing on the hub, or it is private" in said and "hf auth login" in said


def test_a_gated_one(site: Hub) -> None:
    site.add("me/gated", MODEL, gated=True)
    assert "me/gated is gated" in told("me/gated") and "accept its terms" in told("me/gated")


def test_a_commit_that_there_is_not(site: Hub) -> None:
    site.add("me/model", MODEL)
    assert "no commit or file" in told(f"hf:me/model@{'0' * 40}")


def test_a_branch_that_is_called_like_a_commit_is_none(site: Hub) -> None:
    commit = site.add("me/model", MODEL)
    site.repositories["models/me/model"].refs["d" * 40] = commit
    assert f"hf:me/model@{commit}" in told(f"hf:me/model@{'d' * 40}")
    # The control: a branch of another name is pinned to its commit.
    site.repositories["models/me/model"].refs["next"] = commit
    assert hub.pin(name("hf:me/model@next")).revision == commit


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500])
def test_a_hub_that_does_not_answer(site: Hub, status: int) -> None:
    site.add("me/model", MODEL)
    site.fault = status
    said = told("me/model")
    assert "cannot be fetched" in said and str(status) in said and "HF_HUB_OFFLINE=1" in said


def test_nobody_listens(site: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "cannot be fetched" in told("me/model")


def test_a_disk_that_is_too_small_is_told_before_anything_is_fetched(
    site: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add("me/model", MODEL)
    monkeypatch.setattr(hub, "SPARE", 1 << 60)
    assert "does not fit on the disk" in told("me/model") and site.bodies() == []


def test_false_bytes_are_found_deleted_and_fetched_anew(site: Hub) -> None:
    site.add("me/model", MODEL)
    site.fault = "false"
    assert "sent other bytes than it lists. model.safetensors is not" in told("me/model")
    site.fault = ""
    assert (hub.have(name("me/model")).directory / "model.safetensors").read_bytes() == WEIGHTS


def test_a_file_that_was_changed_in_the_cache_is_compared_again(site: Hub) -> None:
    site.add("me/model", MODEL)
    had = hub.have(name("me/model"))
    blob = (had.directory / "model.safetensors").resolve()
    blob.write_bytes(WEIGHTS[:-1] + b"\x55")
    assert "sent other bytes than it lists" in told("me/model")


def test_a_body_that_is_cut_is_no_file(site: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # the client's pauses between its tries
    site.add("me/model", MODEL)
    site.fault = "cut"
    assert "cannot be fetched" in told("me/model")


def test_a_repository_that_was_moved_is_named_as_it_is_now(site: Hub) -> None:
    commit = site.add("me/model", MODEL)
    site.moved["us/old"] = "me/model"
    assert hub.have(name("us/old")).name == hub.Name("me/model", "model", commit)


def test_pickled_weights_are_not_read(site: Hub) -> None:
    site.add("me/old", {"config.json": b"{}", "pytorch_model.bin": b"pickled"})
    site.add("me/gguf", {"config.json": b"{}", "model.gguf": b"x"})
    assert "pickled weights only" in told("me/old")
    assert "none of its files are *.safetensors (it has .gguf, .json)" in told("me/gguf")
    assert site.bodies() == []


def test_a_body_may_come_from_another_origin_which_hears_no_token(site: Hub, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hf_secret")
    with opened() as storage:
        site.add("me/model", MODEL)
        storage.repositories = site.repositories
        site.fault = storage.url
        hub.have(name("me/model"))
        assert any("hf_secret" in headers.get("authorization", "") for _, _, headers in site.asked)
        assert storage.bodies() and not any("authorization" in headers for _, _, headers in storage.asked)


# --- data sets -----------------------------------------------------------------------------------
CARD = {
    "configs": [
        {"config_name": "main", "data_files": [{"split": "train", "path": "main/train-*"}]},
        {"config_name": "socratic", "data_files": "socratic/*.parquet"},
    ]
}


def test_a_data_set_of_several_parts_is_asked_which(site: Hub) -> None:
    files = {"main/train-0.parquet": rows(1), "main/train-1.parquet": rows(2), "socratic/test.parquet": rows(3)}
    site.add("me/sums", files, "datasets", card=CARD)
    said = told("me/sums", "dataset")
    assert "it has main/train, socratic/test" in said and "hf:me/sums#main/train" in said
    had = hub.have(name("me/sums#main", "dataset"))
    assert had.name.part == "main/train" and had.directory.name == "sums-main-train"
    assert sorted(path.name for path in had.directory.iterdir()) == ["train-0.parquet", "train-1.parquet"]
    assert hub.origin(had.directory, {p.name: p for p in had.directory.iterdir()}).startswith("hf:datasets/me/sums@")
    assert "has no part nothing" in told("me/sums#nothing", "dataset")


@pytest.mark.parametrize(
    ("files", "parts"),
    [
        (["data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"], ["default/test", "default/train"]),
        (["rows.jsonl"], ["default/train"]),
        (["en/train.jsonl", "fr/train.jsonl"], ["en/train", "fr/train"]),
        (["a/train/0000.parquet", "a/partial-validation/0001.parquet"], ["a/train", "a/validation"]),
        (["training.jsonl", "dev.jsonl"], ["default/train", "default/validation"]),
        (["constrained.parquet"], ["default/train"]),
    ],
)
def test_parts_are_known_by_the_usual_names(files: list[str], parts: list[str]) -> None:
    assert sorted(hub.usual_parts(files)) == parts


def test_what_is_in_another_form_is_read_as_the_hub_converted_it(site: Hub) -> None:
    site.add("me/csv", {"script.py": b"", "rows.csv": b"a,b\n"}, "datasets")
    commit = site.repositories["datasets/me/csv"].commit({"default/train/0000.parquet": rows(5)}, hub.CONVERTED)
    had = hub.have(name("me/csv", "dataset"))
    assert (had.name.revision, had.name.part) == (commit, "default/train")
    assert pq.read_table(had.directory / "0000.parquet").num_rows == 1
    assert hub.have(had.name, "here").directory == had.directory


def test_a_repository_without_data_says_so(site: Hub) -> None:
    site.repositories["datasets/me/empty"] = Repository()
    site.repositories["datasets/me/empty"].commit({"README.md": b""})
    assert "no commit or file refs/convert/parquet" in told("me/empty", "dataset")


def test_one_module_knows_the_hubs_client() -> None:
    """So that no process of an engine or a learner asks a hub, whoever it imports."""
    found = ((name, imports(name, source)) for name, source in modules().items())
    assert [name for name, used in found if any(below(one, "huggingface_hub") for one in used)] == ["node.hub"]
