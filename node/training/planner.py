"""The planner, pure: cards, host and run in; settings and places out, or a refusal that names what would fit.

`train`, `join`, `doctor` and `run size` ask it, and nobody else reckons. What an owner says stands; the rest is chosen:

- The fewest cards of one kind learn on which a pass of FULL_PASS tokens fits. The others sample.
- Parameters go to the host's memory only where no number of cards holds them, and a shorter pass does not help; then
  as many cards learn as leave an engine its place, since the host's optimiser is divided among their processes.
- Engine and evaluator stand on the learner's cards only where no other card has room.

Memory of a rank is `node.training.sizing`'s, that of an engine `node.inference.room`'s.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from node.inference.room import FULL_TOKENS, LEAST_TOKENS, needed
from node.inference.room import plan as divided
from node.training.errors import TrainingError
from node.training.settings import TrainerSettings, eager_because, read_settings
from node.training.sizing import KNOWN, DecoderShape, RankMemory, engine_size, held_beside, memory_of_a_rank
from node.units import GIB
from protocol.lora import Lora
from protocol.recipe import Recipe
from protocol.run import RunSections

FULL_PASS = 1 << 14
"""Tokens of a pass: more make nothing faster, and fewer are taken only where nothing else fits."""
USABLE = 0.97
"""Of a card's memory; the driver has the rest also while nobody computes."""
CHILD = int(0.6 * GIB)
"""Bytes of a child with torch, before any model."""
CHOSEN = ("world_size", "micro_batch_tokens", "activation_checkpointing", "offload_parameters", "evaluation_device")
"""Settings that the plan chooses where nobody says them."""
TRIED_CARDS, TRIED_GIB, TRIED_HOSTS = (2, 4, 8, 16), (12, 24, 48, 80, 141, 180), (64, 128, 256, 512, 1024, 2048)
TRIED_LORA = Lora()
"""What a refusal tries: cards of a machine, GiB of one card and of a host, an adapter."""


class GpuCard(NamedTuple):
    """A GPU. token: what CUDA_VISIBLE_DEVICES calls it; memory, free: bytes, free -1 where nobody says."""

    token: str
    name: str
    memory: int
    free: int = -1

    @property
    def usable(self) -> int:
        most = int(USABLE * self.memory)
        return most if self.free < 0 else min(most, self.free)

    @property
    def kind(self) -> tuple[str, int]:
        return self.name, self.memory >> 30


class PlannedMachine(NamedTuple):
    """cards: those that torch may use here; memory: bytes of the host."""

    cards: tuple[GpuCard, ...]
    memory: int


@dataclass(frozen=True, slots=True)
class TrainingWork:
    """What is to be done here. longest: tokens of the longest sample; batch: of a step, 0 for any number; samples:
    whether an engine is wanted here; evaluates: whether an evaluator is; teacher: beside the learner."""

    shape: DecoderShape
    recipe: Recipe = Recipe()
    longest: int = 4096
    batch: int = 0
    samples: bool = True
    evaluates: bool = True
    teacher: DecoderShape | None = None

    @classmethod
    def of(
        cls, run: RunSections, shape: DecoderShape, *, samples: bool, teacher: DecoderShape | None = None
    ) -> "TrainingWork":
        if run.pretraining is not None:
            return cls(shape, run.recipe, run.pretraining.sequence, samples=False, evaluates=False)
        rollout = run.rollout
        said = max(rollout.max_turns - 1, 0) * rollout.max_environment_tokens  # what an environment says between turns
        longest = rollout.max_prompt_tokens + rollout.max_output_tokens + said
        batch = longest * rollout.prompts_per_step * rollout.group_size
        return cls(shape, run.recipe, longest, batch, samples=samples, teacher=teacher)

    @property
    def lora(self) -> Lora | None:
        return self.recipe.lora

    @property
    def held(self) -> int:
        return held_beside(self.shape, self.recipe, self.teacher)


class EnginePlace(NamedTuple):
    """Where an engine stands. card: its token, empty for the CPU; most: bytes that it may take, 0 for all that is free;
    tokens: in its cache."""

    card: str
    most: int
    tokens: int


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """settings: the learner's, each of them decided; learners: tokens of its cards, empty on a CPU; engines: where they
    stand; evaluator: the token of its card; rank: memory of one rank; of: bytes that it may take; most_tokens: of the
    longest sample that would fit; said: settings that an owner named; told: what contradicts the plan, one sentence
    each."""

    work: TrainingWork
    machine: PlannedMachine
    settings: TrainerSettings
    learners: tuple[str, ...]
    engines: tuple[EnginePlace, ...]
    evaluator: str
    rank: RankMemory
    of: int
    most_tokens: int = 0
    said: tuple[str, ...] = ()
    told: tuple[str, ...] = ()

    @property
    def idle(self) -> tuple[str, ...]:
        """Tokens of cards that nobody has."""
        taken = {*self.learners, self.evaluator, *(place.card for place in self.engines)}
        return tuple(card.token for card in self.machine.cards if card.token not in taken)

    @property
    def evaluators(self) -> tuple[str, ...]:
        """Cards that the evaluator sees."""
        return (self.evaluator,) if self.evaluator else ()

    @property
    def line(self) -> str:
        """What was chosen and why, in one line."""
        s, work = self.settings, self.work
        how = [f"passes of {s.micro_batch_tokens:,} tokens"]
        how += ["recomputation"] * s.activation_checkpointing
        if s.compiles(gpu=bool(self.learners)):
            why = eager_because(experts=work.shape.experts > 0, delta=work.shape.delta is not None)
            how.append(f"layers not compiled, since {why}" if why else "compiled layers")
        how += ["parameters in the host's memory"] * s.offload_parameters
        room = f"{self.rank.device / GIB:.1f} of {self.of / GIB:.1f} GiB"
        fits = f"samples of {work.longest:,} tokens fit, up to {self.most_tokens:,}"
        if not self.learners:
            return f"everything computes on the CPU: {', '.join(how)} ({room}); {fits}"
        first = next(card for card in self.machine.cards if card.token == self.learners[0])
        cards = f"{len(self.learners)} of {len(self.machine.cards)} card{'s' * (len(self.machine.cards) > 1)}"
        why = "leaving engines their place" if s.offload_parameters else "the fewest that hold it"
        why = "as said" if "world_size" in self.said else why
        parts = [
            f"{cards} learn{'s' * (len(self.learners) == 1)} ({first.name}, {why}): {', '.join(how)} ({room} each)"
        ]
        if self.engines:
            beside = " beside it" * (self.engines[0].card in self.learners)
            tokens = min(place.tokens for place in self.engines)
            parts.append(f"{_count(len(self.engines), 'engine')}{beside} with room for {tokens:,} tokens")
        if work.evaluates:
            parts.append(f"the evaluator {'on the CPU' if not self.evaluator else f'on card {self.evaluator}'}")
        if self.idle:
            parts.append(f"{_count(len(self.idle), 'card')} idle")
        return "; ".join([*parts, fits])

    @property
    def facts(self) -> dict[str, Any]:
        """For programs."""
        return {
            "line": self.line,
            "told": list(self.told),
            "settings": {name: getattr(self.settings, name) for name in CHOSEN},
            "learners": list(self.learners),
            "engines": [place._asdict() for place in self.engines],
            "evaluator": self.evaluator,
            "idle": list(self.idle),
            "gib": {part: round(getattr(self.rank, part) / GIB, 2) for part in RankMemory.__slots__},
            "device_gib": round(self.rank.device / GIB, 2),
            "of_gib": round(self.of / GIB, 2),
            "most_tokens": self.most_tokens,
        }


class NothingFits(TrainingError):
    """A machine is too small for what is to be done on it."""


def plan(machine: PlannedMachine, work: TrainingWork, said: Mapping[str, Any] | None = None) -> TrainingPlan:
    """said: the settings that an owner named, of TrainerSettings. They stand, also where the count says that they do
    not fit, and what they contradict is told.

    Raises TrainingError for settings that are none, and NothingFits.
    """
    said = dict(said or {})
    base = read_settings(said)
    if base.device == "cpu":
        machine = machine._replace(cards=())
    if base.device == "cuda" and not machine.cards:
        raise _refused("trainer.device is cuda, and torch sees no GPU here", ["set trainer.device to auto"])
    if machine.cards and base.world_size > len(machine.cards):
        why = f"trainer.world_size is {base.world_size}, and this machine has {_count(len(machine.cards), 'card')}"
        raise _refused(why, [f"lower it to {len(machine.cards)}"])
    free = next(_ways(machine, work, {k: v for k, v in said.items() if k not in CHOSEN}), None)
    named = {name: getattr(base, name) for name in CHOSEN if name in said}
    if not named:
        found = free
    elif (found := next(_ways(machine, work, said), None)) is None and free is not None:
        found = _as_said(free, base, named)
    if found is None:
        raise _no_plan(machine, work, said, free is not None)
    told = tuple(_contradictions(named, free, found))
    return replace(found, said=tuple(named), told=told, most_tokens=_most_tokens(found))


def memory_of(work: TrainingWork, settings: TrainerSettings, *, gpu: bool) -> RankMemory:
    """Of one rank, in passes as long as a full micro-batch or the longest sample, and no longer than a batch."""
    longest = max(settings.micro_batch_tokens, work.longest)
    tokens = max(min(longest, work.batch) if work.batch else longest, 1)
    ranks = settings.world_size * settings.nodes
    sized = msgspec.structs.replace(settings, micro_batch_tokens=tokens)
    return memory_of_a_rank(work.shape, sized, ranks=ranks, lora=work.lora, held=work.held, gpu=gpu)


# Ways to do it, best first


def _ways(machine: PlannedMachine, work: TrainingWork, said: Mapping[str, Any]) -> Iterator[TrainingPlan]:
    if not machine.cards:
        yield from _ways_on_a_cpu(machine, work, said)
        return
    counts = [1] if said.get("rendezvous") else _counts(machine)
    for offload in _choices(said, "offload_parameters", (False, True)):
        for ease in EASES:
            for ranks in _choices(said, "world_size", counts[::-1] if offload else counts):
                for learners in _alike(machine.cards, ranks):
                    yield from _on(machine, work, said, learners, ease, offload=offload)


class Ease(NamedTuple):
    """full: passes and caches of a size that nobody misses; place: where the evaluator computes."""

    full: bool
    place: str


EASES = (Ease(True, "auto"), Ease(False, "auto"), Ease(False, "cpu"))
"""In the order in which they are tried."""


def _choices(said: Mapping[str, Any], name: str, otherwise: Iterable[Any]) -> Iterable[Any]:
    return (said[name],) if name in said else otherwise


def _counts(machine: PlannedMachine) -> list[int]:
    return [1 << bits for bits in range(len(machine.cards).bit_length()) if 1 << bits <= len(machine.cards)]


def _alike(cards: Sequence[GpuCard], count: int) -> Iterator[tuple[GpuCard, ...]]:
    """So many cards of one kind, those with the most room first: shards are of one size, so the smallest decides."""
    kinds = sorted({card.kind for card in cards}, key=lambda kind: -kind[1])
    for kind in kinds:
        own = sorted((card for card in cards if card.kind == kind), key=lambda card: -card.usable)
        if len(own) >= count:
            yield tuple(own[:count])


def _on(
    machine: PlannedMachine,
    work: TrainingWork,
    said: Mapping[str, Any],
    learners: tuple[GpuCard, ...],
    ease: Ease,
    *,
    offload: bool,
) -> Iterator[TrainingPlan]:
    """Plans in which these cards learn, that with the longest passes first."""
    of, place = min(card.usable for card in learners), said.get("evaluation_device", ease.place)
    host_usable = 0.8
    for tokens in _choices(said, "micro_batch_tokens", _passes(work, len(learners), full=ease.full)):
        settings = read_settings(
            {"activation_checkpointing": True, **said}
            | {"world_size": len(learners), "micro_batch_tokens": tokens, "offload_parameters": offload}
        )
        rank = memory_of(work, settings, gpu=True)
        if rank.device > of or rank.host * settings.world_size > host_usable * machine.memory:
            continue
        if places := _places(machine, work, learners, rank.device, full=ease.full, on_cpu=place == "cpu"):
            chosen = msgspec.structs.replace(settings, evaluation_device=place, evaluation_bytes=places[2])
            names = tuple(card.token for card in learners)
            yield TrainingPlan(work, machine, chosen, names, places[0], places[1], rank, of)


def _passes(work: TrainingWork, ranks: int, *, full: bool) -> list[int]:
    """Lengths of a pass to try. One sample is never divided, so each is at least as long as the longest."""
    most = FULL_PASS
    if work.batch:
        most = min(most, 1 << (max(work.batch // ranks, 1) - 1).bit_length())
    short_pass = 1 << 13  # tokens of a pass where nothing longer fits
    least = min(short_pass, most) if full else 1 << 8
    powers = [1 << bits for bits in range(most.bit_length(), 7, -1) if least <= 1 << bits <= most]
    return [tokens for tokens in powers if tokens >= work.longest] or [max(work.longest, most if full else 1)]


def _places(
    machine: PlannedMachine, work: TrainingWork, learners: tuple[GpuCard, ...], rank: int, *, full: bool, on_cpu: bool
) -> tuple[tuple[EnginePlace, ...], str, int] | None:
    """(engines, card of the evaluator, bytes that it may take); None where they have no room."""
    spare = [card for card in machine.cards if card not in learners]
    left = {card.token: card.usable for card in spare} | {card.token: card.usable - rank for card in learners}
    evaluator, own = "", 0
    if work.evaluates and not on_cpu:
        own = _engine_bytes(work, max(LEAST_TOKENS, work.longest))
        order = [*sorted(spare, key=lambda card: -left[card.token]), *learners]
        evaluator = next((card.token for card in order if left[card.token] >= own), "")
        if not evaluator:
            return None
        left[evaluator] -= own
    # Parameters from which an evaluator on a CPU would hold the run up.
    elif work.evaluates and work.shape.parameters > 1_000_000_000:
        return None
    if not work.samples:
        return (), evaluator, own
    least = max(FULL_TOKENS if full else LEAST_TOKENS, work.longest)
    wanted = _engine_bytes(work, least)
    for among in (spare, learners):
        good = [card for card in among if left[card.token] >= wanted]
        if good:
            return tuple(_place(work, card, left[card.token]) for card in good), evaluator, own
    return None


def _place(work: TrainingWork, card: GpuCard, left: int) -> EnginePlace:
    tokens = _tokens_in(work, left)
    return EnginePlace(card.token, 0 if left == card.usable else left, tokens)


def _engine_bytes(work: TrainingWork, tokens: int) -> int:
    """That an engine in bfloat16 takes of a GPU with a cache of so many tokens."""
    return needed(engine_size(work.shape), tokens, "bfloat16") + _adapters(work)


def _adapters(work: TrainingWork) -> int:
    # Adapters that an engine has room for: those of the policies that it keeps.
    return 2 * 8 * work.shape.adapter_parameters(work.lora) if work.lora else 0


def _tokens_in(work: TrainingWork, room: int) -> int:
    return divided(engine_size(work.shape), room - _adapters(work), "bfloat16").batch_tokens


def _ways_on_a_cpu(machine: PlannedMachine, work: TrainingWork, said: Mapping[str, Any]) -> Iterator[TrainingPlan]:
    """All children share the host's memory: as it always was where that fits, else with recomputation and in shorter
    passes. By the machine's whole memory, so that a run which goes on is divided as before."""
    beside = (work.samples + work.evaluates) * (CHILD + 4 * work.shape.parameters)
    of = max(machine.memory - beside, 0)
    recomputing = _choices(said, "activation_checkpointing", (False, True))
    ways = [(recompute, FULL_PASS) for recompute in recomputing]
    ways += [(recompute, tokens) for recompute in recomputing for tokens in _passes(work, 1, full=False)]
    for recompute, tokens in ways:
        settings = read_settings({"activation_checkpointing": recompute, "micro_batch_tokens": tokens} | dict(said))
        rank = memory_of(work, settings, gpu=False)
        if (rank.device + rank.host) * settings.world_size <= of:
            yield TrainingPlan(work, machine, settings, (), (EnginePlace("", 0, 0),) * work.samples, "", rank, of)


# Around them


def _as_said(free: TrainingPlan, base: TrainerSettings, named: Mapping[str, Any]) -> TrainingPlan:
    """The plan with settings in it that do not fit by count."""
    settings = msgspec.structs.replace(free.settings, **named)
    learners = free.learners
    if learners and len(learners) != base.world_size and "world_size" in named:
        cards = next(_alike(free.machine.cards, base.world_size), free.machine.cards[: base.world_size])
        learners = tuple(card.token for card in cards)
    engines = tuple(place for place in free.engines if place.card not in learners) or free.engines
    rank = memory_of(free.work, settings, gpu=bool(learners))
    of = min((card.usable for card in free.machine.cards if card.token in learners), default=free.of)
    return replace(free, settings=settings, learners=learners, engines=engines, rank=rank, of=of)


def _contradictions(named: Mapping[str, Any], free: TrainingPlan | None, found: TrainingPlan) -> Iterator[str]:
    for name, value in named.items():
        chosen = getattr(free.settings, name) if free else None
        if chosen is not None and chosen != value and not (name == "evaluation_device" and value == "auto"):
            yield f"trainer.{name} = {_word(value)}, as said; the plan alone would take {_word(chosen)}"
    if named and found.rank.device > found.of:
        yield (
            f"trainer.{', '.join(named)}: by count a rank takes {found.rank.device / GIB:.1f} GiB, "
            f"and {found.of / GIB:.1f} are there"
        )


def _most_tokens(found: TrainingPlan) -> int:
    """Tokens of the longest sample that could be learnt from and drawn here, by doubling the run's own."""
    longest, gpu = found.work.longest, bool(found.learners)
    drawn = min((place.tokens for place in found.engines if place.card), default=1 << 20)
    while 2 * longest <= min(drawn, 1 << 20):
        work = replace(found.work, longest=2 * longest, batch=0)
        if memory_of(work, found.settings, gpu=gpu).device > found.of:
            break
        longest *= 2
    return longest


def _no_plan(machine: PlannedMachine, work: TrainingWork, said: Mapping[str, Any], without: bool) -> NothingFits:
    """What would fit instead: each is planned, none is guessed."""

    def fits(
        machine: PlannedMachine = machine, work: TrainingWork = work, said: Mapping[str, Any] = said
    ) -> TrainingPlan | None:
        return next(_ways(machine, work, said), None)

    found = list[str]()
    if without:
        found.append(f"leave out trainer.{', '.join(name for name in said if name in CHOSEN)}")
    shorter = [work.longest >> bits for bits in range(1, 12) if work.longest >> bits >= 128]
    if length := next((length for length in shorter if fits(work=replace(work, longest=length, batch=0))), 0):
        found.append(f"samples of at most {length:,} tokens (rollout.max_output_tokens)")
    if work.lora is None:
        adapted = replace(work, recipe=msgspec.structs.replace(work.recipe, lora=TRIED_LORA))
        if fits(work=adapted):
            found.append(f"an adapter (recipe.lora.rank = {TRIED_LORA.rank})")
    alone = {name: value for name, value in said.items() if name not in CHOSEN}
    if machine.cards:
        card = max(machine.cards, key=lambda one: one.usable)
        counts = (count for count in TRIED_CARDS if count > len(machine.cards))
        several = (
            (count, PlannedMachine(tuple(card._replace(token=str(at)) for at in range(count)), machine.memory))
            for count in counts
        )
        found += [f"{count} cards like {card.name}" for count, more in several if fits(more, said=alone)][:1]
        hosts = (gib for gib in TRIED_HOSTS if gib * GIB > machine.memory)
        found += [f"a host with {gib} GiB" for gib in hosts if fits(machine._replace(memory=gib * GIB), said=alone)][:1]
    cards = ((gib, PlannedMachine((GpuCard("0", "one", gib * GIB),), machine.memory)) for gib in TRIED_GIB)
    found += [f"one card of {gib} GiB" for gib, one in cards if fits(one, said=alone | {"device": "auto"})][:1]
    smaller = sorted((one for one in KNOWN.items() if one[1].parameters < work.shape.parameters), key=_size)
    found += [f"a model like {name}" for name, shape in smaller[::-1] if fits(work=replace(work, shape=shape))][:1]
    cards = ", ".join(f"{card.name} with {max(card.usable, 0) / GIB:.1f} GiB free" for card in machine.cards[:8])
    has = cards or f"no GPU, and {machine.memory / GIB:.1f} GiB of memory"
    what = f"a model of {work.shape.parameters / 1e9:.2f} B parameters" + (" with an adapter" if work.lora else "")
    return _refused(f"{what}, samples of {work.longest:,} tokens; here: {has}", found)


def _size(known: tuple[str, DecoderShape]) -> int:
    return known[1].parameters


def _refused(why: str, fitting: Sequence[str]) -> NothingFits:
    remedy = f"this would fit: {'; or '.join(fitting)}" if fitting else "take a much smaller model"
    return NothingFits("this machine is too small for the training", why, remedy)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:,}" if isinstance(value, int) else str(value)


# Engines by themselves, for those who only sample or judge


def check_engine(shape: DecoderShape, machine: PlannedMachine, longest: int, beside: int = 0) -> str:
    """What an engine has room for on this machine's best card, in words. longest: tokens of a sample; beside: bytes of
    a teacher. Raises NothingFits."""
    if not machine.cards:
        wanted, has = CHILD + 5 * shape.parameters + beside, machine.memory  # float32, and a quarter for its passes
    else:
        wanted = needed(engine_size(shape), max(LEAST_TOKENS, longest), "bfloat16") + beside
        has = max(int(USABLE * card.memory) for card in machine.cards)  # not what is free: who looks may be the one
    what = f"an engine for {shape.parameters / 1e9:.2f} B parameters takes {wanted / GIB:.1f} of {has / GIB:.1f} GiB"
    if wanted > has:
        remedy = f"use a card or a machine of {math.ceil(wanted / GIB)} GiB, or join another pool"
        raise NothingFits("the model does not fit", what, remedy)
    return f"the model fits: {what}{'' if machine.cards else ' of memory, without a GPU'}"
