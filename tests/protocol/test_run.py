import msgspec
import pytest

from protocol.audit import AuditSpec
from protocol.blobs import describe
from protocol.decision import PROOF_BINS, SAMPLE_BOUND, TOKEN_BINS, CalibrationTable, DecisionSpec
from protocol.lora import Lora
from protocol.pretraining import Diloco
from protocol.run import (
    Asset,
    EnvironmentSpec,
    EvaluationSpec,
    Recipe,
    RolloutSpec,
    RunError,
    RunSpec,
    VerificationSpec,
    WeightsSpec,
    check_asset_path,
    decode_run,
    encode_run,
)
from protocol.sections import (
    Alarms,
    Budget,
    EnvironmentPart,
    EvaluationEnvironment,
    Filters,
    LengthBudget,
    PaySection,
    Requirement,
    Requirements,
)


def evaluated(*environments: EvaluationEnvironment) -> EvaluationSpec:
    return EvaluationSpec(environments=environments)


def mixed(*parts: EnvironmentPart) -> EnvironmentSpec:
    return EnvironmentSpec(name="mix", parts=parts)


RUN = RunSpec(name="sort", environment=EnvironmentSpec(name="sort", args={"digits": 4}))
FULL = RunSpec(
    name="everything",
    environment=EnvironmentSpec(name="mix", parts=(EnvironmentPart(name="sort", weight=2.0, args={"digits": 5}),)),
    assets=(Asset(path="model/config.json", root="ab" * 32, size=7),),
    rollout=RolloutSpec(group_size=4, temperature=0.6),
    recipe=Recipe(name="intellect2", steps=9),
    evaluation=EvaluationSpec(problems=3),
    verification=VerificationSpec(quorum=2, decision=DecisionSpec(temper=0.5)),
    length_budget=LengthBudget(targets=(10, 20)),
    filters=Filters(online=True),
    requirements=Requirements(worker=Requirement(cores=2)),
    budget=Budget(hours=1.5),
    alarms=Alarms(window=3),
    audit=AuditSpec(window=5),
    weights=WeightsSpec(snapshot_every=8),
)


def test_the_same_run_always_has_the_same_bytes() -> None:
    assert decode_run(encode_run(RUN)) == RUN
    assert encode_run(decode_run(encode_run(RUN))) == encode_run(RUN)


@pytest.mark.parametrize(
    ("run", "root"),
    [
        (RUN, "18f5780fe17e21798a8693aa03909d9b4b7098170ee80b670fe8ea74dc6ceb11"),
        (FULL, "688d7a3e5ec98d2e70ad46844914de72153c536c69753a2dc442b2ab2b0874fb"),
    ],
)
def test_the_bytes_of_a_run_are_those_of_the_programs_before(run: RunSpec, root: str) -> None:
    """Golden: pools on chain name their runs by this root, so no rearrangement here may change it."""
    run.check()
    assert describe(encode_run(run)).root.hex() == root


def test_a_younger_section_is_in_the_bytes_where_it_says_something() -> None:
    paying = msgspec.structs.replace(RUN, pay=PaySection(judging=0.5))
    assert decode_run(encode_run(paying)) == paying and b'"pay":{' in encode_run(paying)
    assert b'"pay":{' not in encode_run(RUN)


def test_a_bound_of_a_table_is_in_the_bytes_where_it_is_not_the_one_that_all_had() -> None:
    table = CalibrationTable(proofs=(1,) * PROOF_BINS, tokens=(1,) * TOKEN_BINS)
    decision = DecisionSpec(honest={"a/float32/x>a/float32/x": table}, cheating={"int8": table})
    for bound, said in ((SAMPLE_BOUND, False), (2 * SAMPLE_BOUND, True)):
        honest = {name: msgspec.structs.replace(one, bound=bound) for name, one in decision.honest.items()}
        spec = msgspec.structs.replace(decision, honest=honest)
        run = msgspec.structs.replace(RUN, verification=msgspec.structs.replace(RUN.verification, decision=spec))
        assert (b'"bound":' in encode_run(run)) is said


def test_younger_settings_inside_a_section_are_in_the_bytes_where_they_say_something() -> None:
    """At every depth: in a section, in an environment, in each part of a mix."""
    parts = (EnvironmentPart(name="sort"), EnvironmentPart(name="reverse", reward="mine:score"))
    mixed = msgspec.structs.replace(
        RUN,
        environment=EnvironmentSpec(name="mix", parts=parts),
        evaluation=evaluated(EvaluationEnvironment(name="reverse", label="e")),
    )
    encoded = encode_run(mixed)
    assert decode_run(encoded, desk=True) == mixed
    assert encoded.count(b'"reward":"mine:score"') == 1 and encoded.count(b'"reward":""') == 1
    assert b'"environments":[{' in encoded and b'"environments"' not in encode_run(RUN)
    adapted = msgspec.structs.replace(RUN, recipe=Recipe(lora=Lora(rank=4)))
    assert decode_run(encode_run(adapted)) == adapted and b'"lora":{"alpha":32.0,"rank":4' in encode_run(adapted)
    assert b'"lora"' not in encode_run(RUN)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"pay": PaySection(judging=1.5)}, "pay.judging"),
        ({"rollout": RolloutSpec(group_size=1)}, "group_size"),
        ({"rollout": RolloutSpec(prompts_per_file=64)}, "prompts_per_file"),
        ({"rollout": RolloutSpec(temperature=0.0)}, "temperature"),
        ({"recipe": Recipe(learning_rate=-1.0)}, "learning_rate"),
        ({"recipe": Recipe(clip_high=5.0)}, "clip_high"),
        ({"recipe": Recipe(ratio_cap=0.5)}, "ratio_cap"),
        ({"recipe": Recipe(target_reward=0.0)}, "target_reward"),
        ({"recipe": Recipe(decay_steps=10**400)}, "recipe.decay_steps"),
        ({"recipe": Recipe(seed=1 << 63)}, "recipe.seed"),
        ({"evaluation": EvaluationSpec(every=10**400)}, "evaluation.every"),
        ({"recipe": Recipe(loss="mine:loss")}, "recipe.loss = 'mine:loss' is code"),
        ({"recipe": Recipe(advantage="mine:a")}, "recipe.advantage = 'mine:a' is code"),
        ({"recipe": Recipe(loss="../mine:loss")}, "recipe.loss"),
        ({"recipe": Recipe(lora=Lora(rank=0))}, "recipe.lora.rank"),
        ({"recipe": Recipe(lora=Lora(alpha=0))}, "recipe.lora.alpha"),
        ({"recipe": Recipe(lora=Lora(targets=()))}, "recipe.lora.targets"),
        ({"recipe": Recipe(lora=Lora(targets=("q_proj", "q_proj")))}, "recipe.lora.targets"),
        ({"recipe": Recipe(lora=Lora(targets=("self_attn.q_proj",)))}, "recipe.lora.targets"),
        ({"environment": EnvironmentSpec(name="sort", reward="mine:score")}, "environment.reward = 'mine:score' is"),
        ({"environment": EnvironmentSpec(name="sort", reward="mine")}, "environment.reward"),
        ({"environment": mixed(EnvironmentPart(name="sort", reward="mine:score"))}, "environments.reward of sort"),
        ({"environment": EnvironmentSpec(name="verifiers")}, "'verifiers' runs packages"),
        ({"environment": mixed(EnvironmentPart(name="verifiers"))}, "'verifiers' runs packages"),
        ({"evaluation": evaluated(EvaluationEnvironment(name="verifiers"))}, "'verifiers' runs packages"),
        (
            {"evaluation": evaluated(EvaluationEnvironment(name="reverse", reward="mine:score"))},
            "evaluation.environments.reward",
        ),
        ({"evaluation": evaluated(EvaluationEnvironment(name="sort"))}, "evaluation.environments.label"),
        ({"evaluation": evaluated(*[EvaluationEnvironment(name="reverse")] * 2)}, "evaluation.environments.label"),
        (
            {"evaluation": evaluated(EvaluationEnvironment(name="reverse", label="a/b"))},
            "evaluation.environments.label",
        ),
        ({"evaluation": evaluated(EvaluationEnvironment(name="mix"))}, "cannot be mixed"),
        ({"name": ""}, "name"),
        ({"version": 2}, "version"),
        ({"assets": (Asset(path="../secret", root="ab" * 32, size=1),)}, "plain relative path"),
        ({"assets": (Asset(path="a", root="no root", size=1),)}, "assets"),
        ({"assets": (Asset(path="a", root="ab" * 32, size=-1),)}, "assets"),
        ({"assets": (Asset(path="a", root="ab" * 32, size=10**400),)}, "assets"),
    ],
)
def test_a_senseless_run_names_the_field(change: dict, field: str) -> None:
    with pytest.raises(RunError, match=field):
        decode_run(encode_run(msgspec.structs.replace(RUN, **change)))


def test_every_section_has_rules_that_name_its_fields() -> None:
    """What a new section takes: a struct with defaults and such rules, and its line in RunSections."""
    for name, section in RUN.sections().items():
        assert section.rules() and section == type(section)()
        assert all(field.startswith(name) and good for field, good, _ in section.rules())


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../b", "", "a//b", ".hidden", "a\\b", "a\x00b", "x" * 200])
def test_an_asset_cannot_leave_its_directory(path: str) -> None:
    with pytest.raises(RunError):
        check_asset_path(path)


def test_unknown_fields_and_oversize_are_refused() -> None:
    with pytest.raises(RunError, match="surprise"):
        decode_run(encode_run(RUN)[:-1] + b',"surprise":1}')
    with pytest.raises(RunError):
        decode_run(b" " * 70_000)


@pytest.mark.parametrize(
    ("section", "words", "field"),
    [
        ("diloco", {"batch_tokens": 64}, "diloco.batch_tokens"),
        ("diloco", {"inner_steps": 1025}, "diloco.inner_steps"),
        ("diloco", {"fragments": 2}, "diloco.fragments"),
        ("recipe", {"updates_per_step": 2}, "recipe.updates_per_step"),
        ("recipe", {"lora": Lora(rank=4)}, "recipe.lora"),
        ("audit", {"judges": True}, "audit.judges"),
        ("audit", {"trust": "optimistic"}, "audit.trust"),
        ("filters", {"keep_surplus": False}, "filters.keep_surplus"),
    ],
)
def test_several_trainers_learn_from_rollouts_and_not_from_everything(
    section: str, words: dict[str, object], field: str
) -> None:
    rollout, rules = RolloutSpec(group_size=4, prompts_per_step=8, prompts_per_file=4), Diloco(inner_steps=4, stretch=0)
    run = RunSpec(name="several", environment=EnvironmentSpec(name="sort"), rollout=rollout, diloco=rules)
    run.check()
    assert (run.replicas, run.rollouts_per_batch) == (24, 32)
    assert run.files_per_policy == 24 * 4 * 2 * 9 // 8  # shares are never exactly full
    changed = msgspec.structs.replace(run, **{section: msgspec.structs.replace(getattr(run, section), **words)})
    with pytest.raises(RunError, match=field):
        changed.check(desk=True)
