import msgspec
import pytest

from node.recipe.pool import Group, Origin, PoolSample, RolloutPool, teaches
from protocol.identity import address_bytes, address_from_bytes
from protocol.recipe import PRESETS, preset
from protocol.run import EnvironmentSpec, Recipe, RolloutSpec, RunSpec
from protocol.sections import Distill, Filters
from protocol.statements import WorkCommitment

KEPT_ASIDE = 8

MIXED, FLAT = (0.0, 1.0), (1.0, 1.0)


def run(*, online: bool = False, staleness: int = 2, **filters: object) -> RunSpec:
    return RunSpec(
        name="t",
        environment=EnvironmentSpec(name="sort"),
        rollout=RolloutSpec(prompts_per_step=3, prompts_per_file=3, group_size=2),
        recipe=Recipe(max_staleness=staleness),
        filters=msgspec.structs.replace(Filters(online=online), **filters),
    )


def numbers(selection) -> list[int]:
    return [group.key[1] for group in selection.groups]


def test_a_batch_waits_until_it_is_full(make_group) -> None:
    pool = RolloutPool(run())
    pool.add(make_group(i, FLAT) for i in range(2))
    assert pool.missing(0) == 1 and pool.take(0) is None and len(pool) == 2
    pool.add([make_group(2, MIXED)])
    assert numbers(pool.take(0)) == [0, 1, 2] and len(pool) == 0


@pytest.mark.parametrize("online", [False, True])
def test_a_batch_without_signal_is_set_aside_and_the_next_one_made_in_its_place(make_group, online: bool) -> None:
    pool = RolloutPool(run(online=online, refill=1.0))
    pool.add(make_group(i, FLAT) for i in range(6))
    assert pool.take(0) is None and pool.barren == 2 and len(pool) == 0
    pool.add([make_group(0, FLAT)])
    assert len(pool) == 0, "what is set aside does not come back"
    pool.add(make_group(i, MIXED if i == 7 else FLAT) for i in range(6, 9))
    selection = pool.take(0)
    assert numbers(selection) == [6, 7, 8] and [group.key[1] for group in selection.flat] == [0, 1, 2, 3, 4, 5]
    assert selection.barren == 2 and pool.barren == 0
    pool.add(make_group(i, MIXED) for i in range(9, 12))
    assert pool.take(0).flat == ()


def test_what_is_set_aside_is_bounded_goes_stale_and_can_be_taken_back(make_group) -> None:
    pool = RolloutPool(run())
    for index in range(KEPT_ASIDE + 4):
        pool.add(make_group(i, FLAT, index=index) for i in range(3))
        assert pool.take(0) is None and pool.barren == index + 1
    pool.forget(make_group(0, FLAT, index=KEPT_ASIDE + 3).key[0])
    pool.add(make_group(i, MIXED, policy_step=1) for i in range(3))
    assert len(pool.take(1).flat) == 3 * (KEPT_ASIDE - 1)
    pool.add(make_group(i, FLAT) for i in range(3))
    assert pool.take(0) is None
    pool.add(make_group(i, MIXED, policy_step=3) for i in range(3))
    assert pool.take(3).flat == (), "a manifest may not name what is stale"


def test_what_teaches_is_what_the_learner_makes_an_update_of(make_group) -> None:
    def with_recipe(recipe: Recipe, **sections: object) -> RunSpec:
        return msgspec.structs.replace(run(), recipe=recipe, **sections)

    mixed, flat, below = make_group(0, MIXED), make_group(1, FLAT), make_group(2, (-1.0, 0.0))
    cut = msgspec.structs.replace(mixed, samples=tuple(PoolSample(2, n, n, False) for n in MIXED))
    for name in PRESETS:
        assert teaches(with_recipe(preset(name)), mixed) and not teaches(with_recipe(preset(name)), flat)
        assert teaches(with_recipe(preset(name)), below) is (name != "max_rl")
        assert teaches(with_recipe(preset(name)), cut) is (name != "dapo")
    assert teaches(with_recipe(preset("dppo"), distill=Distill(teacher="t")), flat), "a teacher speaks of every answer"
    assert teaches(with_recipe(Recipe(advantage="mine:advantage")), flat), "only the learner knows"


def test_the_freshest_policies_go_first_and_the_rest_is_kept(make_group) -> None:
    pool = RolloutPool(run())
    pool.add(make_group(i + 10, MIXED, policy_step=0) for i in range(2))
    pool.add(make_group(i, MIXED, policy_step=1) for i in range(2))
    assert numbers(pool.take(2)) == [0, 1, 10]
    assert pool.rollouts == 2 and pool.missing(2) == 2 and pool.missing(3) == 3


@pytest.mark.parametrize("keep", [True, False])
def test_the_first_file_of_a_worker_that_starves_goes_before_the_freshest(make_group, keep: bool) -> None:
    def of(number: int, node: int, step: int) -> Group:
        commitment = WorkCommitment(1, address_from_bytes(bytes([node]) * 20), bytes(32), 0, bytes(32), 1)
        origin = Origin(commitment, 9, b"", bytes(32), 1)
        return msgspec.structs.replace(make_group(number, MIXED, policy_step=step), origin=origin)

    pool, slow = RolloutPool(run(keep_surplus=keep)), [of(10, 1, 0), of(11, 1, 1)]
    files = [msgspec.structs.replace(one, key=(bytes([at]) * 32, one.key[1])) for at, one in enumerate(slow)]
    pool.add([*files, *(of(number, 2, 2) for number in range(4))])
    fed = {address_bytes(address_from_bytes(bytes([2]) * 20))}
    assert numbers(pool.take(2, fed)) == ([11, 0, 1] if keep else [0, 1, 2]), "its freshest, once"
    if keep:
        assert numbers(pool.take(2, fed | {bytes([1]) * 20})) == [2, 3, 10], "the control: it starves no more"


@pytest.mark.parametrize("level", range(9))
def test_nothing_staler_than_the_run_allows_leaves_the_pool(make_group, level: int) -> None:
    pool = RolloutPool(run(staleness=level))
    pool.add(make_group(i, MIXED, policy_step=0) for i in range(3))
    assert pool.missing(level) == 0 and pool.missing(level + 1) == 3
    assert pool.take(level + 1) is None
    assert pool.stale_rollouts == 6 and len(pool) == 0


def test_a_group_that_comes_twice_is_used_once(make_group) -> None:
    pool = RolloutPool(run())
    pool.add([make_group(0, MIXED), make_group(0, MIXED), make_group(1, MIXED)])
    assert pool.missing(0) == 1


def test_the_online_filter_refills_until_every_group_has_signal(make_group) -> None:
    pool = RolloutPool(run(online=True))
    pool.add([make_group(0, FLAT), make_group(1, MIXED), make_group(2, FLAT), make_group(3, MIXED)])
    assert pool.missing(0) == 1 and pool.take(0) is None
    pool.add([make_group(4, MIXED, index=1), make_group(5, FLAT, index=1), make_group(6, MIXED, index=1)])
    selection = pool.take(0)
    assert numbers(selection) == [1, 3, 4] and all(group.informative for group in selection.groups)
    assert [group.key[1] for group in selection.flat] == [0, 2]
    assert [group.key[1] for group in selection.idle] == [5]  # nobody will ever need it
    assert sorted(group.key[1] for group in selection.settled) == [0, 1, 2, 3, 4, 5]
    assert pool.rollouts == 2  # 6 came after the batch was full: surplus for the next step


def test_a_refill_ends_when_nothing_has_signal(make_group) -> None:
    pool = RolloutPool(run(online=True, refill=2.0))
    pool.add(make_group(i, FLAT) for i in range(5))
    assert pool.missing(0) == 3
    pool.add([make_group(5, MIXED)])
    selection = pool.take(0)
    assert numbers(selection) == [0, 1, 5] and len(selection.flat) == 3


def test_surplus_can_be_given_up(make_group) -> None:
    pool = RolloutPool(run(keep_surplus=False))
    pool.add(make_group(i, MIXED) for i in range(5))
    assert pool.take(0) is not None and len(pool) == 0


def test_a_group_of_one_and_a_group_of_equals_have_no_signal(make_group) -> None:
    assert not make_group(0, [1.0]).informative
    assert not make_group(0, [0.25, 0.25 + 1e-12]).informative
    assert make_group(0, [0.25, 0.26]).informative
