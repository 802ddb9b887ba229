"""On-policy distillation: a teacher's log-probabilities become advantages, wherever a step is made or replayed."""

import json
import shutil
from collections.abc import Callable
from math import nan
from pathlib import Path

import msgspec
import pytest
import torch

from node.errors import RunFileError
from node.inference.start_weights import StartWeights
from node.inference.torch_engine import build_model
from node.run.file import compile_run, describe_file
from node.training.batch import Batch, BatchHeader, BatchRow, decode_batch, encode_batch
from node.training.errors import TrainingError
from node.training.learner import Learner
from node.training.micro_batch import padded
from node.training.policy_model import PolicyModel
from node.training.replay import StepReplayer
from node.training.settings import TrainerSettings
from node.training.sizing import held_beside, shape_of
from node.training.spool import Spool
from node.training.trainer import SpoolTrainer
from node.training.warmstart import SORT_ALPHABET, create_model
from protocol.recipe import Recipe
from protocol.run import Asset, RunError, RunSpec, decode_run, encode_run
from protocol.sections import TEACHER, Distill
from tests.node.training.conftest import LIMIT, made_up_rows
from tests.node.training.test_trainer import batch

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def assets(tiny_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, and a teacher of another shape that is far from it."""
    made = tmp_path_factory.mktemp("distill") / "assets"
    shutil.copytree(tiny_assets / "model", made / "model")
    teacher = create_model(made / TEACHER, SORT_ALPHABET, seed=8, hidden=32, layers=1)
    with torch.no_grad():
        teacher.get_output_embeddings().weight.mul_(40)
    (made / TEACHER / "model.safetensors").unlink()
    teacher.to(torch.bfloat16).save_pretrained(made / TEACHER)
    return made


def teacher_of(assets: Path) -> PolicyModel:
    model, weights = build_model(assets / TEACHER), StartWeights(assets / TEACHER)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    return PolicyModel(model, 1.0, 1 << 20)


def learner_of(assets: Path, distill: Distill | None, recipe: Recipe | None = None) -> Learner:
    model = build_model(assets / "model")
    made = Learner(model, recipe or Recipe(name="cispo"), 1.0, TrainerSettings(), None, LIMIT, distill=distill)
    made.load_weights(StartWeights(assets / "model"))
    if distill:
        made.beside.set_teacher(build_model(assets / TEACHER), StartWeights(assets / TEACHER))
    return made


def sampled_by(learner: Learner, rows: list[BatchRow]) -> list[BatchRow]:
    """The same rows with the learner's own log-probabilities, as if it had sampled them."""
    with torch.no_grad():
        found = learner.logprobs(rows)[0].split([row.length for row in rows])
    return [msgspec.structs.replace(row, sampler_logprobs=own.tolist()) for row, own in zip(rows, found, strict=True)]


@pytest.mark.parametrize("rewards", [0.0, 0.5])
def test_a_tokens_advantage_is_what_the_teacher_finds_likelier_than_the_sampler_did(
    assets: Path, rewards: float
) -> None:
    """On policy the gradient of a loss with weight r is -A of log p, whatever bounds r."""
    recipe = Recipe(name="cispo", advantage="mean")
    learner = learner_of(assets, Distill(teacher=TEACHER, coefficient=0.7, rewards=rewards), recipe)
    rows = sampled_by(learner, made_up_rows(12))
    counts = torch.tensor([row.length for row in rows])
    with torch.no_grad():
        teacher = teacher_of(assets)(padded(rows, CPU))[0]
    sampler = torch.cat([torch.tensor(row.sampler_logprobs) for row in rows])
    given = torch.tensor([row.reward for row in rows])
    centred = (given - given.view(-1, 4).mean(1).repeat_interleave(4)).repeat_interleave(counts)
    advantages = 0.7 * (teacher - sampler) + rewards * centred
    logprobs, _ = learner.logprobs(rows)
    own = list(learner.parameters.values())
    expected = torch.autograd.grad(-(advantages * logprobs).sum() / counts.sum(), own)
    found: dict[str, torch.Tensor] = {}
    for _, part in learner.group_gradients(rows, 0):
        found |= {name: found.get(name, torch.zeros_like(slope)) + slope for name, slope in part.items()}
    for name, slope in zip(learner.parameters, expected, strict=True):
        assert torch.allclose(found[name], slope, atol=1e-5), name
    metrics = learner.step(rows, 0)
    assert metrics["teacher_kl"] == pytest.approx(float((sampler - teacher).mean()), abs=1e-4)
    assert metrics["informative_share"] == 1.0


def sampled(learner: Learner, seed: int, count: int = 64, length: int = 3) -> list[BatchRow]:
    """Answers that the learner draws token by token. All rewards are equal: they teach nothing."""
    random, model = torch.Generator().manual_seed(seed), learner.model
    model.config._attn_implementation = "sdpa"  # of a plain pass
    tokens, told = torch.tensor([[3, 4, 12]]).repeat(count, 1), []
    with torch.no_grad():
        for _ in range(length):
            table = model(input_ids=tokens, use_cache=False).logits[:, -1].log_softmax(-1)
            drawn = torch.multinomial(table.exp(), 1, generator=random)
            told.append(table.gather(1, drawn))
            tokens = torch.cat((tokens, drawn), 1)
    logprobs = torch.cat(told, 1).tolist()
    return [BatchRow(i // 4, [3, 4, 12], tokens[i, 3:].tolist(), logprobs[i], 1.0, 0) for i in range(count)]


def test_a_policy_comes_to_its_teacher_where_rewards_say_nothing(assets: Path) -> None:
    recipe = Recipe(name="cispo", steps=32, decay_steps=36, learning_rate=8e-3)
    learner, deaf = learner_of(assets, Distill(teacher=TEACHER), recipe), learner_of(assets, None, recipe)
    divergences = [learner.step(sampled(learner, step), step)["teacher_kl"] for step in range(32)]
    assert min(divergences[:3]) > 2.5 > 5 * max(divergences[-3:]), divergences[::3]
    assert deaf.step(sampled(deaf, 0), 0)["updates"] == 0


def test_who_is_told_what_the_teacher_says_needs_none_and_learns_the_same(assets: Path) -> None:
    recipe = Recipe(name="cispo", learning_rate=3e-3)
    holds = learner_of(assets, Distill(teacher=TEACHER), recipe)
    told = Learner(
        build_model(assets / "model"), recipe, 1.0, TrainerSettings(), None, LIMIT, distill=Distill(teacher="")
    )
    told.load_weights(StartWeights(assets / "model"))
    rows = sampled_by(holds, made_up_rows(12))
    with torch.no_grad():
        said = teacher_of(assets)(padded(rows, CPU))[0].split([row.length for row in rows])
    bring = [msgspec.structs.replace(row, teacher_logprobs=one.tolist()) for row, one in zip(rows, said, strict=True)]
    bring = list(decode_batch(encode_batch(Batch(BatchHeader(0), tuple(bring)))).rows)
    ((_, one),) = [*holds.group_gradients(rows, 0)][:1]
    ((_, other),) = [*told.group_gradients(bring, 0)][:1]
    assert not told.beside.has_teacher and all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)
    assert holds.step(rows, 0)["teacher_kl"] == pytest.approx(told.step(bring, 0)["teacher_kl"])
    with pytest.raises(TrainingError, match="nothing in a batch"):
        told.step(
            [msgspec.structs.replace(row, teacher_logprobs=row.teacher_logprobs[:-1] + [nan]) for row in bring], 1
        )
    assert b"teacher_logprobs" not in encode_batch(Batch(BatchHeader(0), tuple(rows)))


def test_a_teacher_with_fewer_tokens_is_refused(assets: Path, tmp_path: Path) -> None:
    create_model(tmp_path, "0123=", seed=1, hidden=32, layers=1)
    with pytest.raises(TrainingError, match="does not fit") as caught:
        learner_of(assets, Distill(teacher=TEACHER)).beside.set_teacher(build_model(tmp_path), StartWeights(tmp_path))
    assert "7 tokens, and the model has 13" in caught.value.why


def with_teacher(run: RunSpec, assets: Path) -> RunSpec:
    files = sorted((assets / TEACHER).iterdir())
    named = tuple(Asset(path=f"{TEACHER}/{f.name}", root=describe_file(f).root.hex(), size=1) for f in files)
    return msgspec.structs.replace(run, distill=Distill(teacher=TEACHER), assets=named)


def test_whoever_replays_a_step_with_the_teachers_files_has_its_roots(
    assets: Path, tiny_run: RunSpec, tmp_path: Path
) -> None:
    """As standbys and auditors do; with another teacher it is another step."""
    short = msgspec.structs.replace(tiny_run.recipe, steps=2)
    run = with_teacher(msgspec.structs.replace(tiny_run, recipe=short), assets)
    spool = Spool(tmp_path / "trained")
    spool.prepare(encode_run(run), assets)
    for step in range(2):
        spool.write_batch(step, batch(step))
    SpoolTrainer(spool, TrainerSettings(checkpoint_every=1)).train()
    published = json.loads(spool.metrics_path(1).read_bytes())
    assert published["teacher_kl"] > 0

    def replayed(files: Path, name: str, run: RunSpec = run) -> str:
        other = Spool(tmp_path / name)
        other.prepare(encode_run(run), files)
        replayer = StepReplayer(other, TrainerSettings())
        replayer.place(0)
        return replayer.step(decode_batch(batch(0))).policy_root.hex()

    assert replayed(assets, "again") == published["policy_root"]
    # At a desk nobody does tasks: there the teacher is held after all.
    as_tasks = msgspec.structs.replace(run, distill=Distill(teacher=TEACHER, tasks=True))
    assert replayed(assets, "as tasks", as_tasks) == published["policy_root"]
    changed = Path(shutil.copytree(assets, tmp_path / "changed"))
    create_model(changed / TEACHER, SORT_ALPHABET, seed=9, hidden=32, layers=1)
    assert replayed(changed, "otherwise") != published["policy_root"]


@pytest.fixture
def run_file(assets: Path, tmp_path: Path) -> Callable[[str], Path]:
    for name in ("model", TEACHER):
        shutil.copytree(assets / name, tmp_path / name)

    def write(more: str = "") -> Path:
        path = tmp_path / "run.toml"
        path.write_text(
            'name = "d"\nmodel = "model"\n[environment]\nname = "sort"\nargs = { digits = 3 }\n'
            f'[distill]\nteacher = "{TEACHER}"\n{more}'
        )
        return path

    return write


def test_a_run_names_the_teachers_files_by_their_roots(run_file: Callable[[str], Path], assets: Path) -> None:
    made = compile_run(run_file(""))
    teacher = {asset.path for asset in made.spec.assets if asset.path.startswith(f"{TEACHER}/")}
    assert teacher == {f"{TEACHER}/config.json", f"{TEACHER}/model.safetensors"}
    spec = decode_run(made.encoded)
    assert spec.distill == Distill(teacher=TEACHER) and spec == made.spec
    size = (assets / "model" / "model.safetensors").stat().st_size
    assert spec.weight_bytes() == size and 0 < spec.weight_bytes(TEACHER) < size
    plain = msgspec.structs.replace(spec, distill=None)
    assert b"distill" not in encode_run(plain)
    shapes = [shape_of(assets / name) for name in ("model", TEACHER)]
    assert held_beside(shapes[0], spec.recipe, shapes[1]) == shapes[1].parameters
    with_kl = msgspec.structs.replace(spec.recipe, reference_kl=0.1)
    assert held_beside(shapes[0], with_kl, shapes[1]) == sum(shape.parameters for shape in shapes)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("coefficient = 0.0\n", "distill.coefficient"),
        ("rewards = -1.0\n", "distill.rewards"),
        ("[filters]\nonline = true\n", "filters.online"),
        ("[diloco]\nexchange = 'int8'\n", "distill"),
        ("student = 'x'\n", "a key that is not known"),
    ],
)
def test_what_makes_no_sense_beside_a_teacher_is_named(run_file: Callable[[str], Path], more: str, said: str) -> None:
    with pytest.raises(RunFileError) as caught:
        compile_run(run_file(more), desk=True)
    assert said in caught.value.why


def test_a_teacher_with_other_tokens_is_refused(run_file: Callable[[str], Path], tmp_path: Path) -> None:
    path = run_file("")
    create_model(tmp_path / TEACHER, "0123456789=x", seed=1, hidden=32, layers=1)
    with pytest.raises(RunFileError, match="another tokenizer"):
        compile_run(path)
    (tmp_path / TEACHER / "tokenizer.json").write_text("[]")
    with pytest.raises(RunFileError, match="cannot read"):
        compile_run(path)


def test_a_run_with_a_teacher_that_it_has_no_files_of_is_refused(tiny_run: RunSpec) -> None:
    run = msgspec.structs.replace(tiny_run, distill=Distill(teacher=TEACHER))
    with pytest.raises(RunError, match="distill.teacher"):
        decode_run(encode_run(run))
