"""The planner: what fits on which cards, as a table; and machines and settings that do not go together."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from node.hardware import Gpu, Hardware
from node.hardware.builds import Builds
from node.inference.room import LEAST_TOKENS, needed
from node.processes.forkserver import ChildProcess
from node.training.client import EvaluatorProcess, TrainerProcess
from node.training.errors import TrainingError
from node.training.evaluator import evaluation_engine
from node.training.planner import (
    CHILD,
    GpuCard,
    NothingFits,
    PlannedMachine,
    TrainingPlan,
    TrainingWork,
    check_engine,
    memory_of,
    plan,
)
from node.training.planning import machine_of, only, plan_here, visible
from node.training.settings import TrainerSettings, decode_settings
from node.training.sizing import GIB, KNOWN, engine_size, shape_like
from node.training.spool import Spool
from protocol.lora import Lora
from protocol.recipe import Recipe
from protocol.run import RunSpec, encode_run
from tests.pretended_cuda import pretended_cuda

# Model, cards of so many GiB (host: twice) | the whole model learns | an adapter of rank 16 does. Of a plan:
# cards that learn, tokens of a pass, GiB of a rank, and where engines stand; of a refusal: what would fit.
GOLDEN = """
    qwen3-0.6b | 12 | 1 learn, 16384 host, 6.2, all beside | 1 learn, 16384, 6.0, all beside
    qwen3-0.6b | 24 | 1 learn, 16384, 16.6, all beside | 1 learn, 16384, 6.0, all beside
    qwen3-0.6b | 48 | 1 learn, 16384, 16.6, all beside | 1 learn, 16384, 6.0, all beside
    qwen3-0.6b | 80 | 1 learn, 16384, 16.6, all beside | 1 learn, 16384, 6.0, all beside
    qwen3-0.6b | 8 x 80 | 1 learn, 16384, 16.6, 7 engines | 1 learn, 16384, 6.0, 7 engines
    qwen3-1.7b | 12 | - 16 cards, one card of 48 GiB, a model like qwen3-0.6b | - 256 tokens, 2 cards, one card of 24 GiB, a model like qwen2.5-1.5b
    qwen3-1.7b | 24 | 1 learn, 8192 host, 7.9, all beside | 1 learn, 8192, 8.5, all beside
    qwen3-1.7b | 48 | 1 learn, 4096, 36.2, all beside | 1 learn, 16384, 10.8, all beside
    qwen3-1.7b | 80 | 1 learn, 16384, 39.7, all beside | 1 learn, 16384, 10.8, all beside
    qwen3-1.7b | 8 x 80 | 1 learn, 16384, 39.7, 7 engines | 1 learn, 16384, 10.8, 7 engines
    qwen3-4b | 12 | - one card of 141 GiB, a model like qwen3-0.6b | - 4 cards, one card of 48 GiB, a model like qwen2.5-1.5b
    qwen3-4b | 24 | - 16 cards, one card of 141 GiB, a model like qwen3-1.7b | - 2,048 tokens, 2 cards, one card of 48 GiB, a model like qwen3-1.7b
    qwen3-4b | 48 | 1 learn, 16384 host, 13.8, all beside | 1 learn, 16384, 18.6, all beside
    qwen3-4b | 80 | 1 learn, 16384 host, 13.8, all beside | 1 learn, 16384, 18.6, all beside
    qwen3-4b | 8 x 80 | 2 learn, 16384, 47.5, 6 engines | 1 learn, 16384, 18.6, 7 engines
    qwen2.5-7b | 12 | - a model like qwen3-0.6b | - one card of 48 GiB, a model like qwen2.5-1.5b
    qwen2.5-7b | 24 | - a model like qwen3-1.7b | - 4 cards, one card of 48 GiB, a model like qwen3-1.7b
    qwen2.5-7b | 48 | - an adapter, 16 cards, a model like qwen3-4b | 1 learn, 8192 host, 9.0, all beside
    qwen2.5-7b | 80 | 1 learn, 16384 host, 24.3, all beside | 1 learn, 16384, 29.4, all beside
    qwen2.5-7b | 8 x 80 | 4 learn, 16384, 56.6, 4 engines | 1 learn, 16384, 29.4, 7 engines
    qwen2.5-32b | 12 | - a model like qwen3-0.6b | - a model like qwen2.5-1.5b
    qwen2.5-32b | 24 | - a model like qwen3-1.7b | - a model like qwen3-1.7b
    qwen2.5-32b | 48 | - a model like qwen3-4b | - one card of 180 GiB, a model like qwen2.5-7b
    qwen2.5-32b | 80 | - a model like qwen2.5-7b | - 4 cards, one card of 180 GiB, a model like qwen3-14b
    qwen2.5-32b | 8 x 80 | 4 learn, 16384 host, 41.0, 3 engines | 2 learn, 16384, 59.7, 5 engines
"""  # noqa: E501 - a table
ROWS = [[part.strip() for part in line.split("|")] for line in GOLDEN.strip().splitlines()]
SMALL = KNOWN["qwen3-0.6b"]


def cards(*gib: float, name: str = "H100", free: float = -1) -> PlannedMachine:
    have = tuple(GpuCard(str(at), name, int(one * GIB), int(free * GIB)) for at, one in enumerate(gib))
    return PlannedMachine(have, int(2 * sum(gib) * GIB))


def in_short(found: TrainingPlan) -> str:
    settings, beside = found.settings, bool(found.engines) and found.engines[0].card in found.learners
    passes = f"{settings.micro_batch_tokens}{' host' * settings.offload_parameters}"
    where = "all beside" if beside else f"{len(found.engines)} engines"
    return f"{len(found.learners)} learn, {passes}, {found.rank.device / GIB:.1f}, {where}"


def holds(found: TrainingPlan) -> None:
    """That nobody takes more of a card or of the host than there is."""
    taken = dict.fromkeys(found.learners, found.rank.device)
    if found.evaluator:
        taken[found.evaluator] = taken.get(found.evaluator, 0) + found.settings.evaluation_bytes
    for place in found.engines:
        taken[place.card] = taken.get(place.card, 0) + place.most
        assert place.tokens >= max(LEAST_TOKENS, found.work.longest)
    for card in found.machine.cards:
        assert taken.get(card.token, 0) <= card.usable, card
    assert found.rank.host * found.settings.world_size <= found.machine.memory
    assert found.settings.activation_checkpointing and found.most_tokens >= found.work.longest


@pytest.mark.parametrize(("model", "gib", "full", "adapter"), ROWS, ids=[f"{row[0]} on {row[1]}" for row in ROWS])
def test_the_golden_table(model: str, gib: str, full: str, adapter: str) -> None:
    *eight, one = gib.split(" x ")
    for lora, wanted in ((None, full), (Lora(), adapter)):
        work = TrainingWork(KNOWN[model], Recipe(lora=lora))
        try:
            found = plan(cards(*[float(one)] * (8 if eight else 1)), work)
        except NothingFits as error:
            named = error.remedy.removeprefix("this would fit: ").split("; or ")
            short = [one.removeprefix("samples of at most ").replace(" like H100", "") for one in named]
            assert "- " + ", ".join(one.partition(" (")[0] for one in short) == wanted
            continue
        assert in_short(found) == wanted
        holds(found)


def test_what_a_refusal_names_does_fit() -> None:
    """Its adapter, its cards, its host: each is planned, and none is smaller than it must be."""
    work = TrainingWork(KNOWN["qwen3-4b"])
    with pytest.raises(NothingFits) as caught:
        plan(PlannedMachine(cards(48).cards, 64 * GIB), work)
    said = caught.value.remedy
    assert all(part in said for part in ("recipe.lora.rank = 16", "4 cards", "a host with 128 GiB", "of 141 GiB"))
    holds(plan(PlannedMachine(cards(48).cards, 128 * GIB), work))
    holds(plan(PlannedMachine(cards(*[48] * 4).cards, 64 * GIB), work))
    holds(plan(PlannedMachine(cards(48).cards, 64 * GIB), TrainingWork(work.shape, Recipe(lora=Lora()))))
    assert "4.02 B parameters" in caught.value.why and "H100 with 46.6 GiB free" in caught.value.why


def test_a_card_that_others_share_is_planned_by_what_is_free() -> None:
    whole, shared = plan(cards(24), TrainingWork(SMALL)), plan(cards(24, free=14), TrainingWork(SMALL))
    assert shared.of == 14 * GIB < whole.of
    assert shared.settings.offload_parameters and not whole.settings.offload_parameters
    holds(shared)
    with pytest.raises(NothingFits, match="too small"):
        plan(cards(24, free=4), TrainingWork(SMALL))


def test_of_eight_cards_of_two_kinds_one_kind_learns_and_all_others_sample() -> None:
    large = tuple(GpuCard(str(at), "H100", 80 * GIB) for at in range(4, 8))
    small = tuple(GpuCard(str(at), "L4", 24 * GIB) for at in range(4))
    machine = PlannedMachine((*small, *large), 1024 * GIB)
    found = plan(machine, TrainingWork(KNOWN["qwen2.5-7b"]))
    assert found.learners == ("4", "5", "6", "7") and {place.card for place in found.engines} < {"0", "1", "2", "3"}
    holds(found)
    forced = plan(machine, TrainingWork(KNOWN["qwen2.5-7b"]), {"world_size": 8})
    assert len(forced.learners) == 8 and "by count a rank takes" in forced.told[-1], "shards are alike, cards are not"


def test_a_host_with_less_memory_than_one_card_holds_no_parameters() -> None:
    card, work = cards(24).cards, TrainingWork(KNOWN["qwen3-1.7b"])
    assert plan(PlannedMachine(card, 48 * GIB), work).settings.offload_parameters
    with pytest.raises(NothingFits, match="too small") as caught:
        plan(PlannedMachine(card, 16 * GIB), work)
    assert "a host with 64 GiB" in caught.value.remedy


def test_what_an_owner_says_stands_and_what_it_contradicts_is_told() -> None:
    one = cards(*[80] * 8)
    said = plan(one, TrainingWork(SMALL), {"micro_batch_tokens": 1 << 12, "world_size": 4, "milestones": 5})
    assert said.settings.micro_batch_tokens == 4096 and said.settings.milestones == 5
    assert len(said.learners) == said.settings.world_size == 4 and len(said.engines) == 4 and "as said" in said.line
    assert len(said.told) == 2 and "the plan alone would take 16,384" in " ".join(said.told)
    holds(said)
    too_much = plan(cards(24), TrainingWork(SMALL), {"micro_batch_tokens": 1 << 20})
    assert too_much.settings.micro_batch_tokens == 1 << 20 and "by count a rank takes" in too_much.told[1]
    assert plan(cards(24), TrainingWork(SMALL), {"micro_batch_tokens": 1 << 14}).told == (), "the same as the plan's"
    for nonsense, what in (
        ({"world_size": 9}, "has 8 cards"),
        ({"wrold_size": 1}, "unknown field"),
        ({"micro_batch_tokens": 0}, "must be 1 to"),
    ):
        with pytest.raises(TrainingError) as caught:
            plan(one, TrainingWork(SMALL), nonsense)
        assert what in caught.value.why
    with pytest.raises(NothingFits, match="too small") as caught:
        plan(PlannedMachine((), 64 * GIB), TrainingWork(SMALL), {"device": "cuda"})
    assert "sees no GPU" in caught.value.why


def test_a_setting_that_is_in_the_way_is_named() -> None:
    with pytest.raises(NothingFits) as caught:
        plan(cards(24, free=3), TrainingWork(SMALL), {"world_size": 1})
    assert "leave out" not in caught.value.remedy, "without it nothing fits either"
    told = plan(cards(24), TrainingWork(KNOWN["qwen3-1.7b"]), {"offload_parameters": False}).told
    assert "trainer.offload_parameters = false, as said; the plan alone would take true" in told[0]


def test_long_samples_make_long_passes_and_fewer_of_them_fit() -> None:
    long = plan(cards(80), TrainingWork(SMALL, longest=40_000))
    assert long.settings.micro_batch_tokens == 40_000 and long.most_tokens == 320_000
    holds(long)
    with pytest.raises(NothingFits) as caught:
        plan(cards(24), TrainingWork(SMALL, longest=1 << 17))
    assert "samples of at most 32,768 tokens" in caught.value.remedy
    few = plan(cards(80), TrainingWork(SMALL, longest=100, batch=1000))
    assert few.settings.micro_batch_tokens == 1024, "a pass is no longer than a step"


def test_without_a_gpu_everything_is_as_it_was_while_that_fits() -> None:
    machine = PlannedMachine((), 16 * GIB)
    found = plan(machine, TrainingWork(KNOWN["smollm2-135m"], longest=256, batch=4096))
    assert found.settings == TrainerSettings() and found.learners == () and "on the CPU" in found.line
    less = plan(machine, TrainingWork(KNOWN["smollm2-135m"], longest=256))
    assert less.settings.activation_checkpointing and less.settings.micro_batch_tokens == 1 << 14
    with pytest.raises(NothingFits) as caught:
        plan(machine, TrainingWork(KNOWN["qwen2.5-1.5b"]))
    assert "no GPU, and 16.0 GiB of memory" in caught.value.why and "one card of" in caught.value.remedy


def test_one_line_says_what_was_chosen_and_why() -> None:
    said = plan(cards(*[80] * 8), TrainingWork(KNOWN["qwen2.5-7b"])).line
    assert said.startswith("4 of 8 cards learn (H100, the fewest that hold it): passes of 16,384 tokens, recomputation")
    assert "4 engines with room for" in said and "the evaluator on card 4" in said and "\n" not in said
    alone = plan(cards(80, 80), TrainingWork(SMALL, samples=False, evaluates=False))
    assert alone.idle == ("1",) and "1 card idle" in alone.line and "engine" not in alone.line


def test_one_line_says_whether_layers_are_compiled() -> None:
    dense, routed = KNOWN["qwen2.5-7b"], msgspec.structs.replace(KNOWN["qwen2.5-7b"], experts=4)
    one = cards(*[80] * 8)
    assert "compiled" not in plan(one, TrainingWork(dense)).line
    assert "compiled layers" in plan(one, TrainingWork(dense), {"compile": "auto"}).line
    assert "compiled" not in plan(PlannedMachine((), 512 * GIB), TrainingWork(dense), {"compile": "auto"}).line
    assert (
        "layers not compiled, since its layers have experts" in plan(one, TrainingWork(routed), {"compile": True}).line
    )


def test_engines_alone_are_refused_by_what_they_take() -> None:
    small, large = KNOWN["qwen2.5-1.5b"], KNOWN["qwen2.5-32b"]
    assert "the model fits" in check_engine(small, cards(24), 4096)
    with pytest.raises(NothingFits) as caught:
        check_engine(large, cards(24), 4096)
    assert needed(engine_size(large), 4096, "bfloat16") > 60 * GIB and "of 23.3 GiB" in caught.value.why
    with pytest.raises(NothingFits):
        check_engine(small, PlannedMachine((), CHILD), 4096)


@pytest.mark.parametrize("parameters", [10**6, 10**8, 10**9, 8 * 10**9, 7 * 10**10])
def test_a_shape_by_number_alone_has_about_as_many(parameters: int) -> None:
    assert shape_like(parameters).parameters == pytest.approx(parameters, rel=0.35)
    assert memory_of(TrainingWork(shape_like(parameters)), TrainerSettings(), gpu=True).device > 16 * 0.65 * parameters


def test_torch_and_the_environment_say_which_cards_there_are() -> None:
    gpus = (Gpu("H100", 80 * GIB, 70 * GIB), Gpu("L4", 24 * GIB), Gpu("MI300X", 192 * GIB, vendor="amd"))
    hardware = Hardware(8, 64 * GIB, gpus)
    assert machine_of(hardware, Builds(), "").cards == ()
    seen = machine_of(hardware, Builds("12.8"), "1,0").cards
    assert [card.name for card in seen] == ["L4", "H100"] and seen[1].usable == 70 * GIB and seen[1].token == "0"
    assert machine_of(hardware, Builds(None, "6.4"), "0").cards[0].name == "MI300X"
    assert visible(seen, None) == seen and visible(seen, "") == () == visible(seen, "-1")
    assert [card.token for card in visible(seen, "0,7,1")] == ["0"], "what follows one that is none is not seen"
    assert visible(seen, "GPU-8f2c")[0][:2] == ("GPU-8f2c", "L4")
    assert only(()) == {} and only(("3", "5")) == {"CUDA_VISIBLE_DEVICES": "3,5", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_what_is_planned_for_a_run_is_what_its_evaluator_takes(tiny_run: RunSpec, tiny_assets: Path) -> None:
    found = plan_here(tiny_run, tiny_assets, {}, cards(24), samples=True)
    assert found.work.longest == tiny_run.rollout.max_prompt_tokens + tiny_run.rollout.max_output_tokens
    assert found.settings.micro_batch_tokens <= found.work.batch * 2
    with pretended_cuda():
        engine = evaluation_engine(found.settings)
        assert engine.most == found.settings.evaluation_bytes > 0 and engine.device == "cuda:0"
        aside = msgspec.structs.replace(found.settings, evaluation_device="cpu")
        assert evaluation_engine(aside).most == 0


class Deaf:
    """A starter that only hears what is to be started."""

    environment: Mapping[str, str] = {}

    async def start(self, command: Sequence[str], environment: Mapping[str, str], *, heard: bool) -> ChildProcess:
        self.environment = environment
        raise OSError(command[-1])

    async def said(self, command: Sequence[str]) -> bytes:
        raise OSError(command[-1])


async def test_learner_and_evaluator_see_the_cards_of_the_plan(
    tiny_run: RunSpec, tiny_assets: Path, tmp_path: Path
) -> None:
    found = plan_here(tiny_run, tiny_assets, {}, cards(24, 24, 24), samples=True)
    spool, starter = Spool(tmp_path), Deaf()
    spool.prepare(encode_run(tiny_run), tiny_assets)
    children = (
        TrainerProcess(spool, found.settings, starter, found.learners),
        EvaluatorProcess(spool, tiny_run, found.settings, starter, found.evaluators),
    )
    for child, seen in zip(children, ("0", "1"), strict=True):
        with pytest.raises(OSError, match=str(tmp_path)):
            await child.run()
        assert (starter.environment["CUDA_VISIBLE_DEVICES"], starter.environment["CUDA_DEVICE_ORDER"]) == (
            seen,
            "PCI_BUS_ID",
        )
    assert decode_settings(spool.settings_path.read_bytes()) == found.settings


def test_a_plan_never_takes_more_than_there_is() -> None:
    shapes = [KNOWN[name] for name in ("smollm2-135m", "qwen3-1.7b", "qwen2.5-7b")]
    for shape, gib, count, longest in itertools.product(shapes, (12, 40, 80), (1, 3), (512, 20_000)):
        try:
            holds(plan(cards(*[gib] * count), TrainingWork(shape, longest=longest)))
        except NothingFits as error:
            assert "this would fit" in error.remedy or "smaller" in error.remedy
