"""`push` by the hub's own client, to a hub of the tests': what is sent, what the card says, twice, and cut off."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cli.main import main
from tests.hub import Hub, opened, ours

pytest.importorskip("torch")
pytest.importorskip("gguf")
pytestmark = pytest.mark.filterwarnings("ignore:Use .content=:DeprecationWarning")  # of how the client sends files

RUN = """
name = "sums"
model = "hf:base/llama@{commit}"
[environment]
name = "sort"
args = {{ digits = 3, held_back = 64 }}
[rollout]
max_prompt_tokens = 8
max_output_tokens = 40
[recipe]
steps = 9
{lora}
[verification]
toploc_k = 16
"""
LORA = '[recipe.lora]\nrank = 2\nalpha = 4\ntargets = ["q_proj"]'
BREAKOUT = "````\n# I am the card\n---\nlicense: mit"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with opened() as found:
        ours(found, tmp_path, monkeypatch)
        monkeypatch.setenv("HF_TOKEN", "hf_writes")
        monkeypatch.setenv("COLUMNS", "200")
        yield found


def trained(folder: Path, hub: Hub, *, adapter: bool) -> Path:
    """What a `train` leaves, of a model that it had from the hub."""
    from node.run.file import compile_run, load_run_file
    from node.run.problems import place_files
    from node.training.spool import Spool
    from protocol.policy import encode_image
    from tests.node.weights.test_gguf import configurations, model_dir

    config, split, _ = configurations()["llama"]
    model = model_dir(folder / "base", config(), split)
    files = {path.name: path.read_bytes() for path in model.iterdir()}
    commit = hub.add("base/llama", files, card={"license": "llama3.2"})
    run = folder / "runs" / "sums"
    run.mkdir(parents=True)
    (run / "run.toml").write_text(RUN.format(commit=commit, lora=LORA if adapter else ""))
    compiled = compile_run(run / "run.toml", load_run_file(run / "run.toml"), reach="whole")
    assert compiled.spec.sources == {"model": f"hf:base/llama@{commit}"}
    place_files(compiled, run / "assets")
    spool = Spool(run / "spool")
    spool.prepare(compiled.encoded, run / "assets")
    image = files["model.safetensors"]
    if adapter:
        import numpy as np

        layers = [f"model.layers.{number}.self_attn.q_proj" for number in range(4)]
        shapes = {f"{layer}.lora_{part}": (2, 64) if part == "a" else (64, 2) for layer in layers for part in "ab"}
        random = np.random.default_rng(1)
        image = encode_image(
            {name: random.integers(0x3C00, 0x3D00, shape, np.uint16) for name, shape in shapes.items()}
        )
    records = []
    for step, reward in ((0, 0.25), (4, 0.5), (8, 0.75), (9, 0.8)):
        spool.policy_path(step).write_bytes(image)
        spool.metrics_path(step).write_text("{}")
        said = [{"prompt": f"{n}+1=", "answer": f"{BREAKOUT} at {step}", "reward": reward} for n in range(4)]
        spool.answers_path(step).write_text(json.dumps(said))
        records.append(json.dumps({"step": step, "eval_reward": reward}))
    (run / "metrics.jsonl").write_text("\n".join(records) + "\n")
    return run


def now(hub: Hub, name: str = "me/sums") -> dict[str, bytes]:
    repository = hub.repositories[f"models/{name}"]
    return repository.files[repository.refs["main"]]


def head(files: dict[str, bytes]) -> dict:
    return yaml.safe_load(files["README.md"].decode().split("---")[1])


def test_a_policy_is_pushed_with_what_it_earned_and_a_second_time_changes_nothing(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(tmp_path, hub, adapter=False)
    assert main(["push", f"{run}@8", "me/sums", "--private", "--gguf", "q8_0", "--yes"]) == 0
    told = capsys.readouterr()
    assert "me/sums: new, private, licence llama3.2" in told.err and "sums-q8_0.gguf" in told.err
    files, repository = now(hub), hub.repositories["models/me/sums"]
    assert repository.private and {"config.json", "tokenizer.json", "model.safetensors", "sums-q8_0.gguf"} <= set(files)
    assert files["Modelfile"] == b"FROM .\n"
    about, card = head(files), files["README.md"].decode()
    assert (about["license"], about["base_model"], about["library_name"]) == ("llama3.2", "base/llama", "transformers")
    # Step 9 is not of this policy.
    assert "0.25 at step 0 and 0.75 at step 8" in card and "0.800" not in card
    assert f"`````\n{BREAKOUT} at 0\n`````" in card and f"{BREAKOUT} at 8" in card
    assert str(tmp_path) not in card and "hf:base/llama@" in card
    assert main(["weights", "verify", str(_written(files, tmp_path / "got")), "--root", _root(card)]) == 0

    commits = len(repository.files)
    hub.asked.clear()
    assert main(["push", f"{run}@8", "me/sums", "--gguf", "q8_0", "--yes"]) == 0
    assert len(repository.files) == commits
    assert not [method for method, *_ in hub.asked if method == "PUT"], "large files are there"
    # Another form takes the place of the old one, which would be loaded beside it.
    assert main(["push", str(run), "me/sums", "--gguf", "bf16", "--yes"]) == 0
    assert "sums-bf16.gguf" in now(hub) and "sums-q8_0.gguf" not in now(hub)
    assert "removed: it is of an earlier push" in capsys.readouterr().err


def _written(files: dict[str, bytes], folder: Path) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def _root(card: str) -> str:
    return card.split("policy root: `")[1].split("`")[0]


def test_an_adapter_is_pushed_as_peft_has_it_and_can_be_gone_on_with_by_name(hub: Hub, tmp_path: Path) -> None:
    run = trained(tmp_path, hub, adapter=True)
    assert main(["push", str(run), "me/sums", "--yes"]) == 0
    files = now(hub)
    assert {"adapter_config.json", "adapter_model.safetensors", "policy/model.safetensors"} <= set(files)
    assert not {"config.json", "model.safetensors", "Modelfile"} & set(files)
    assert json.loads(files["adapter_config.json"])["base_model_name_or_path"] == "base/llama"
    assert (head(files)["library_name"], head(files)["base_model_relation"]) == ("peft", "adapter")
    got = _written(files, tmp_path / "got")
    assert main(["weights", "verify", str(got / "policy"), "--root", _root(files["README.md"].decode())]) == 0
    # Back by its name, as the start of another run.
    from node.run.file import compile_run

    compiled = compile_run(run / "run.toml", reach="whole", sets=['adapter="hf:me/sums"'])
    assert "adapter/adapter_model.safetensors" in compiled.files and compiled.spec.sources["adapter"].startswith(
        "hf:me/"
    )


def test_a_push_that_ends_in_the_middle_shows_nothing_and_goes_on(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(tmp_path, hub, adapter=False)
    hub.fault = "cut"  # large files arrive, the commit does not
    assert main(["push", str(run), "me/sums", "--yes"]) != 0
    assert "run the command again" in capsys.readouterr().err
    assert now(hub) == {} and hub.large
    hub.fault = ""
    hub.asked.clear()
    assert main(["push", str(run), "me/sums", "--yes"]) == 0
    assert "model.safetensors" in now(hub) and not [method for method, *_ in hub.asked if method == "PUT"]


def test_what_may_not_be_pushed_is_told_before_anything_is_sent(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(tmp_path, hub, adapter=False)

    def refused(*arguments: str) -> str:
        hub.asked.clear()
        assert main(["push", *arguments]) not in (0, 1)
        assert not [one for one in hub.asked if one[0] == "PUT" or "/commit/" in one[1]]
        return " ".join(capsys.readouterr().err.split())

    assert "nobody can be asked" in refused(str(run), "me/sums")
    assert "is no place to push to" in refused(str(run), "sums", "--yes")
    assert "nothing to push at" in refused(str(tmp_path), "me/sums", "--yes")
    hub.add("me/open", {})
    assert "me/open is public" in refused(str(run), "me/open", "--private", "--yes")
    hub.repositories["models/base/llama"].card = {}
    hub_notes = list((tmp_path / "home" / "hub").rglob("listing.json"))
    assert hub_notes and all(note.unlink() is None for note in hub_notes)
    assert "its licence is not known" in refused(str(run), "me/sums", "--yes")
    monkeypatch.setenv("HF_TOKEN", "hf_reads")
    assert "hf auth login" in refused(str(run), "me/sums", "--yes", "--licence", "mit")
    assert "models/me/sums" not in hub.repositories
    # A dry run shows all of it, and sends nothing.
    hub.asked.clear()
    assert main(["push", str(run), "me/sums", "--dry-run", "--licence", "mit"]) == 0
    told = capsys.readouterr()
    assert 'license: "mit"' in told.out and "model.safetensors" in told.err and "models/me/sums" not in hub.repositories


def test_an_exported_adapter_is_pushed_without_a_place_of_this_machine(hub: Hub, tmp_path: Path) -> None:
    """A directory as `weights export` writes it, of an adapter to a model that lies somewhere here."""
    run = trained(tmp_path, hub, adapter=True)
    assert main(["weights", "export", str(tmp_path / "Sums"), "--trained", str(run)]) == 0
    export = tmp_path / "Sums"
    (export / "policy").mkdir()
    (export / "policy" / "model.safetensors").write_bytes(
        (run / "spool" / "out" / "policy-000009.safetensors").read_bytes()
    )
    assert str(tmp_path) in (export / "adapter" / "adapter_config.json").read_text(), "the control"
    assert main(["push", str(export), "me/sums", "--yes", "--licence", "mit"]) == 0
    files = now(hub)
    assert {"adapter_config.json", "adapter_model.safetensors", "policy/model.safetensors"} <= set(files)
    assert not [name for name, data in files.items() if str(tmp_path).encode() in data]
    # Of a training, too.
    assert main(["push", str(run), "me/others", "--yes"]) == 0
    assert not [name for name, data in now(hub, "me/others").items() if str(tmp_path).encode() in data]
