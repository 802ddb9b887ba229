import json
from pathlib import Path

import msgspec
import pytest

from cli import demo
from cli.main import main
from cli.run import _dependence, effective, note_what_is_odd, warnings_about, without_tables
from cli.run_template import KINDS, rate_for, render_run, with_real_paths
from node.run.file import CompiledRun, load_run_file
from node.run.problems import PartFacts, RunFacts
from protocol.recipe import PRESETS
from protocol.run import EnvironmentSpec, Recipe, RolloutSpec, RunSpec


@pytest.fixture
def model(tmp_path: Path) -> Path:
    pytest.importorskip("torch")
    from node.training.warmstart import SORT_ALPHABET, create_model

    create_model(tmp_path / "model", SORT_ALPHABET, seed=3, hidden=128, layers=1)
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_run_file_can_be_run_as_it_is(kind: str, model: Path, capfd) -> None:
    file = model / "new.toml"
    assert main(["run", "new", str(file), "--like", kind]) == 0
    assert main(["run", "validate", str(file), "--json"]) == 0
    said = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert said["name"] == "new" and said["facts"]["parameters"] > 1000
    assert said["objective"]["loss"] == PRESETS[load_run_file(file).recipe.name].loss
    if kind == "intellect2":
        run = load_run_file(file)
        assert (run.recipe.updates_per_step, run.recipe.grad_clip, run.filters.online) == (8, 0.1, True)
        assert run.length_budget.targets[-1] == 10000
        assert said["this_machine_lacks"]["worker"]  # an 80 GiB GPU


def test_the_learning_rate_follows_from_the_models_size(model: Path, capfd) -> None:
    """A toy's rate lost SmolLM2 in four steps; the demo's model has it, and the published recipe keeps its own."""
    rates = [rate_for(size) for size in (600_000, 135_000_000, 1_500_000_000, 7_000_000_000, 10**12)]
    assert rates == [3e-4, 2e-5, 4e-6, 2e-6, 1e-7]
    for kind, rate in (("small", rate_for(10**5)), ("large", 3e-4), ("intellect2", 3e-7)):
        file = model / f"{kind}.toml"
        assert main(["run", "new", str(file), "--like", kind]) == 0
        assert load_run_file(file).recipe.learning_rate == rate
    facts = RunFacts(135_000_000, 5, (PartFacts("sort", 9000, 512, 0, 1.0),))
    toy = RunSpec(name="t", environment=EnvironmentSpec(name="sort"), recipe=Recipe(learning_rate=2e-4))
    note_what_is_odd(CompiledRun(toy, b"", b"", {}), facts)
    told = capfd.readouterr().err
    assert "note: learning_rate = 0.0002 is high for" in told and "begin with 2e-05" in told


def test_new_does_not_overwrite_and_knows_its_presets(tmp_path: Path, capfd) -> None:
    file = tmp_path / "run.toml"
    file.write_text("mine")
    assert main(["run", "new", str(file)]) == 3 and file.read_text() == "mine"
    assert main(["run", "new", str(file), "--force", "--recipe", "dpo"]) == 2
    assert "did you mean 'dppo'" in capfd.readouterr().err
    assert main(["run", "new", str(file), "--force", "--dataset", "d.jsonl", "--recipe", "cispo"]) == 0
    run = load_run_file(file)
    assert (run.dataset, run.recipe.name) == ("d.jsonl", "cispo")
    assert run.environment is not None and run.environment.name == "dataset"


def test_size_is_told_of_a_run_a_model_and_known_ones(model: Path, capfd) -> None:
    file = model / "new.toml"
    assert main(["run", "new", str(file)]) == 0

    def sizes(*arguments: str) -> list[dict]:
        capfd.readouterr()
        assert main(["run", "size", *arguments, "--json"]) == 0
        return json.loads(capfd.readouterr().out.splitlines()[-1])["models"]

    (run,), (bare,) = sizes(str(file)), sizes("--model", str(model / "model"))
    assert run["model"] == "new" and run["parameters"] == bare["parameters"] > 1000
    assert run["cards"]["8"]["learners"] == ["0"] and len(run["cards"]["8"]["engines"]) == 7
    known = {one["model"]: one["cards"] for one in sizes("--gpus", "8", "--host-gib", "1000")}
    assert len(known["qwen2.5-7b"]["8"]["learners"]) == 4
    assert known["qwen2.5-32b"]["8"]["settings"]["offload_parameters"]
    assert "a model like" in {one["model"]: one for one in sizes("--gpus", "1")}["qwen2.5-32b"]["cards"]["1"]["remedy"]
    file.write_text(file.read_text().replace("[recipe]", "[recipe]\nlora = { rank = 8 }", 1))
    assert sizes(str(file))[0]["cards"]["1"]["gib"]["state"] <= run["cards"]["1"]["gib"]["state"]
    (said,) = sizes(str(file), "--gpus", "1", "--trainer", "micro_batch_tokens=512")
    assert "as said" in said["cards"]["1"]["told"][0]
    assert main(["run", "size", "--gpu-gib", "1"]) == 0 and "1+0" not in capfd.readouterr().out.replace("1+0:", "")
    assert main(["run", "size", str(file), "--gpus", "2"]) == 0 and "2 x 80 GiB: 1 of 2 cards" in capfd.readouterr().out
    assert main(["run", "size", str(file), "--model", str(model)]) == 2


def test_show_tells_where_each_value_comes_from(tmp_path: Path, capfd) -> None:
    file = tmp_path / "run.toml"
    file.write_text('name = "t"\nmodel = "m"\n[environment]\nname = "sort"\n[recipe]\nname = "dppo"\nclip_low = 0.1\n')
    found = {name: (value, origin) for name, value, origin in effective(file)}
    assert found["recipe.clip_low"] == (0.1, "file")
    assert found["recipe.sampler_kl"] == (0.001, "preset dppo")
    assert found["recipe.steps"] == (150, "default")
    assert main(["run", "show", str(file), "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert said["settings"]["filters.online"] == {"value": False, "from": "default"}
    assert main(["run", "show", str(file)]) == 0 and "preset dppo" in capfd.readouterr().out


def test_a_mistake_has_its_exit_code_and_its_remedy(model: Path, capfd) -> None:
    file = model / "run.toml"
    start = 'name = "t"\nmodel = "model"\n[environment]\nname = "sort"\n'
    for text, words in (
        ("[filter]\nonline = true\n", "did you mean 'filters'?"),
        ("[rollout]\nlearning_rate = 1\n", "did you mean [recipe] 'learning_rate'?"),
        ("[requirements.worker]\ncoers = 1\n", "did you mean [requirements.worker] 'cores'?"),
        ("[recipe]\nupdates_per_step = 65\n", "must be 1 to 64"),
        ('[recipe]\nname = "ppo"\n', "must be one of intellect2"),
        ("[rollout]\nmax_prompt_tokens = 2\n", "rollout.max_prompt_tokens is 2"),
        ('[[environments]]\nname = "sort"\n', "one of the two"),
    ):
        file.write_text(start + text)
        assert main(["run", "validate", str(file)]) == 6
        assert words in " ".join(capfd.readouterr().err.split())


def test_six_broken_rows_and_a_wrong_setting_take_one_look(model: Path, capfd) -> None:
    row = {"prompt": "3", "task_type": "verifiable_math", "verification_info": json.dumps({"ground_truth": "3"})}
    broken = [
        {"task_type": "poetry"},
        {"prompt": []},
        {"verification_info": {}},
        {"problem_id": {}},
        {"prompt": None},
        {"task_type": 3},
    ]
    rows = [{**row, "problem_id": f"a{i}", **(broken[i] if i < len(broken) else {})} for i in range(40)]
    (model / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = model / "run.toml"
    file.write_text(
        'name = "t"\nmodel = "model"\ndataset = "d.jsonl"\n[environment]\nname = "dataset"\n[rollout]\ngroup_size = 1\n'
    )
    assert main(["run", "validate", str(file), "--json"]) == 6
    said = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert said["mistakes"] == 7 and [one["place"][-6:] for one in said["findings"][1:]] == [
        f"line {n}" for n in range(1, 7)
    ]
    assert main(["run", "validate", str(file)]) == 6
    text = capfd.readouterr()
    assert "line 6" in text.out and "7 mistakes" in text.err
    file.write_text(
        file.read_text()
        .replace("group_size = 1", "")
        .replace('"dataset"\n[', '"dataset"\nargs = { on_bad_row = "skip" }\n[')
    )
    assert main(["run", "validate", str(file)]) == 0
    assert "34 taken: INTELLECT-2, verifiable_math" in capfd.readouterr().out


def test_a_tokenizer_of_another_model_is_found(model: Path, capfd) -> None:
    config = model / "model" / "config.json"
    config.write_text(config.read_text().replace('"vocab_size": 13', '"vocab_size": 12'))
    file = model / "run.toml"
    file.write_text('name = "t"\nmodel = "model"\n[environment]\nname = "sort"\n')
    assert main(["run", "validate", str(file)]) == 6
    assert "tokenizer and model do not belong together" in capfd.readouterr().err


@pytest.mark.parametrize("text", ["{", "[]", '{"x": ' + "[" * 100_000])
def test_a_config_that_is_none_is_a_mistake_beside_a_sound_tokenizer(model: Path, capfd, text: str) -> None:
    (model / "model" / "config.json").write_text(text)
    file = model / "run.toml"
    file.write_text('name = "t"\nmodel = "model"\n[environment]\nname = "sort"\n')
    assert main(["run", "validate", str(file)]) == 6
    told = "".join(capfd.readouterr())
    assert "config.json" in told and "Traceback" not in told


def test_a_new_run_file_asks_for_a_chat_template_only_where_there_is_one(model: Path, capfd) -> None:
    file, settings = model / "new.toml", model / "model" / "tokenizer_config.json"
    row = {"prompt": "3", "task_type": "verifiable_math", "verification_info": json.dumps({"ground_truth": "3"})}
    rows = [{**row, "problem_id": f"a{i}"} for i in range(40)]
    (model / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["run", "new", str(file), "--dataset", "d.jsonl"]) == 0
    assert 'template = "plain"' in file.read_text()
    assert main(["run", "validate", str(file)]) == 0

    file.write_text(file.read_text().replace('template = "plain"', 'template = "chat"'))
    capfd.readouterr()
    assert main(["run", "validate", str(file)]) == 6
    assert f"{model / 'model'} has none" in " ".join(capfd.readouterr().err.split())  # and not a temporary directory

    settings.write_text(json.dumps({**json.loads(settings.read_text()), "chat_template": "{{ messages[0].content }}"}))
    assert main(["run", "new", str(file), "--dataset", "d.jsonl", "--force"]) == 0
    assert 'template = "chat"' in file.read_text()


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--environment", "retry"], 'args = { "digits" = 4, "tries" = 2 }'),
        (["--environment", "reasoning_gym"], 'args = { "dataset" = "chain_sum", "template" = "plain" }'),
        (["--package", "mine.py"], 'package = "mine.py"\nargs = { "template" = "plain" }'),
    ],
)
def test_a_new_run_file_has_arguments_that_its_environment_takes(model: Path, flags: list[str], line: str) -> None:
    """The model has no chat template."""
    from node.run.file import load_run_file

    file = model / "new.toml"
    assert main(["run", "new", str(file), *flags]) == 0
    assert line in file.read_text() and load_run_file(file).environment is not None
    assert main(["run", "new", str(file), "--package", "a.py", "--dataset", "d.jsonl", "--force"]) == 2


@pytest.fixture
def sorting(model: Path) -> Path:
    """A run file that can be run, beside its model."""
    file = model / "run.toml"
    file.write_text('name = "t"\nmodel = "model"\n[environment]\nname = "sort"\n')
    return file


def test_a_missing_shard_is_named(sorting: Path, capfd) -> None:
    folder = sorting.parent / "model"
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    places = {"lm_head.weight": "model-00001-of-00002.safetensors", "x": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert main(["run", "validate", str(sorting)]) == 6
    assert "model-00002-of-00002.safetensors is not there" in " ".join(capfd.readouterr().err.split())


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"model_type": "qwen3"', '"model_type": "qwen33"', "qwen33"),
        (
            '"intermediate_size": 384',
            '"intermediate_size": 256',
            "has shape (128, 384), config.json makes it (128, 256)",
        ),
        ('"num_hidden_layers": 1', '"num_hidden_layers": 2', "'model.layers.1.input_layernorm.weight'"),
    ],
)
def test_weights_that_do_not_fit_the_architecture_are_found(
    sorting: Path, old: str, new: str, words: str, capfd
) -> None:
    config = sorting.parent / "model" / "config.json"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))
    assert main(["run", "validate", str(sorting)]) == 6
    assert words in " ".join(capfd.readouterr().err.split())


def test_what_is_odd_is_noted() -> None:
    run = RunSpec(
        name="t",
        environment=EnvironmentSpec(name="sort"),
        rollout=RolloutSpec(prompts_per_step=10, prompts_per_file=4, temperature=0.6),
        recipe=Recipe(name="dppo", max_staleness=9, steps=10, decay_steps=5, learning_rate=1e-3, updates_per_step=16),
    )
    facts = RunFacts(10**9, 5, (PartFacts("sort", 8, 4, 0, 1.0),))
    notes = " ".join(warnings_about(run, facts))
    for words in ("no multiple", "beyond 8", "decay_steps", "updates_per_step", "is high", "noisy", "temperature"):
        assert words in notes
    calm = RunSpec(name="t", environment=EnvironmentSpec(name="sort"))
    assert warnings_about(calm, RunFacts(10**5, 5, (PartFacts("sort", 9000, 512, 0, 1.0),))) == []


def test_engines_that_are_permitted_and_not_calibrated_are_noted() -> None:
    run = load_run_file(Path(demo.__file__).with_name("sort.toml"))
    spec = RunSpec(name="t", environment=EnvironmentSpec(name="sort"), verification=run.verification)
    facts = RunFacts(10**5, 5, (PartFacts("sort", 9000, 512, 0, 1.0),))
    assert not any("calibrated" in note for note in warnings_about(spec, facts))
    wide = msgspec.structs.replace(spec.verification, engines=("*/*/sdpa",))
    notes = warnings_about(msgspec.structs.replace(spec, verification=wide), facts)
    assert any("permits */*/sdpa, but the run was calibrated for x86_64-avx512/float32/sdpa" in note for note in notes)


def test_a_run_file_is_written_as_it_was_read(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        'name = "a \\"quoted\\" run"\nmodel = "m"\n'
        '[[environments]]\nname = "dataset"\ndataset = "d.jsonl"\nargs = { template = "chat", held_back_share = 0.5 }\n'
        '[[environments]]\nname = "sort"\nweight = 0.5\n'
        "[requirements.worker]\ncores = 3\n[length_budget]\ntargets = [1, 2]\n"
        '[distill]\nteacher = "t"\ntasks = true\n'
    )
    run = load_run_file(file)
    copy = tmp_path / "copy.toml"
    copy.write_text(render_run(run))
    assert load_run_file(copy) == run
    placed = with_real_paths(run, Path("/data"))
    assert placed.distill and placed.distill.tasks
    assert (placed.model, placed.distill.teacher) == ("/data/m", "/data/t")
    assert [part.dataset for part in placed.environments] == ["/data/d.jsonl", None]


def test_a_calibrations_tables_are_one_line_of_what_is_shown() -> None:
    rows = effective(Path(demo.__file__).with_name("sort.toml"))
    shown = without_tables(rows)
    (told,) = [value for name, value, _ in shown if name == "verification.decision"]
    assert "2 pairs of engines, 10 ways" in told
    assert len(shown) < len(rows) - 50 and shown[0] == rows[0] and shown[-1] == rows[-1]


def test_what_verdicts_depend_on_is_said_and_opinions_are_noted() -> None:
    run = load_run_file(Path(demo.__file__).with_name("sort.toml"))
    spec = RunSpec(name="t", environment=EnvironmentSpec(name="mix"), verification=run.verification)
    judged = PartFacts("essays", 9000, 512, 0, 0.5, determinism="judged", turns=3, package="ab" * 32)
    exact = PartFacts("sort", 9000, 512, 0, 0.5)
    noted = warnings_about(spec, RunFacts(10**5, 5, (judged, exact)))
    assert any("essays: rewards are opinions" in one for one in noted) and not any(
        "sort: rewards" in one for one in noted
    )
    assert any("judges = true" in one for one in noted)
    told = _dependence(judged)
    assert "judges" in told and "3 turns" in told and "ab" * 32 in told
    assert _dependence(exact) == "exact, from the answer alone"


@pytest.mark.parametrize(
    ("url", "protocol"),
    [("wss://example.org/ws", "openenv"), ("https://example.org/mcp", "mcp"), ("stdio:game", "mcp")],
)
def test_a_run_behind_a_server_is_written_whole(tmp_path: Path, url: str, protocol: str) -> None:
    rows = [{"problem_id": str(n), "prompt": "guess", "reset": {"seed": n}} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file, words = str(tmp_path / "game.toml"), ["--kind", "witnessed", "--dataset", "rows.jsonl"]
    assert main(["run", "new", file, *words, "--server", url]) == 0
    written = load_run_file(tmp_path / "game.toml")
    assert written.audit.witnessed == "alone" and written.environment is not None
    assert (written.environment.name, written.environment.args["url"]) == ("server", url)
    assert written.environment.args["protocol"] == protocol
    for less in (["--kind", "witnessed", "--dataset", "rows.jsonl"], ["--server", url]):
        assert main(["run", "new", file, "--force", *less]) == 2
