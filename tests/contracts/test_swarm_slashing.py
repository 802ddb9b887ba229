from typing import Any

from eth_hash.auto import keccak

from contracts.bindings import Slashed
from contracts.deploy import TOKEN
from protocol.earnings import Accepted, Leaf, leaves_of, proof_of
from protocol.identity import NodeKey
from protocol.manifest import PolicyStatement
from protocol.pages import read_page
from protocol.statements import Domain, EpochRoot, WorkCommitment, sign, work_id
from tests.contracts.conftest import WINDOW

CURVE_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


def test_a_slash_takes_the_stake_and_evicts(world: Any, pool: Any, refused: Any) -> None:
    reporter = world.person()
    receipt = pool.slash(pool.commitment(), reporter, reason=6)
    events = world.events(receipt)
    slashed = [event for event in events if isinstance(event, Slashed)][0]
    assert (slashed.node, slashed.provider) == (pool.node.address, pool.provider.address)
    assert (slashed.reason, slashed.amount) == (6, 50 * TOKEN)
    assert slashed.file_root == pool.commitment().file_root
    stake = world.contracts.stake_of(pool.provider.address)
    assert (stake.bonded, stake.frozen) == (50 * TOKEN, 50 * TOKEN)
    assert world.contracts.token_balance(reporter.address) == 0  # who judges must not gain
    assert world.contracts.member(pool.id, pool.node.address).evicted
    with refused("NodeEvicted"):
        world.send(world.contracts.join(pool.id, "x"), pool.node)


def test_a_node_is_slashed_once_per_pool(world: Any, pool: Any, refused: Any) -> None:
    pool.slash(pool.commitment(), world.person())
    with refused("NodeEvicted"):
        pool.slash(pool.commitment(index=1), world.person())


def test_a_slash_takes_no_more_than_there_is(world: Any, pool: Any) -> None:
    world.send(world.contracts.remove_node(pool.node.address), pool.provider)
    world.send(world.contracts.unbond(70 * TOKEN), pool.provider)
    ready = world.contracts.stake_of(pool.provider.address).withdrawable_at
    world.send(world.contracts.withdraw(), pool.provider, at=ready)
    receipt = world.send(world.contracts.evidence(*contradiction(pool)), world.person())
    assert [event.amount for event in world.events(receipt) if isinstance(event, Slashed)] == [30 * TOKEN]


def test_stake_that_is_unbonding_is_slashed_until_it_is_withdrawn(world: Any, pool: Any, refused: Any) -> None:
    world.send(world.contracts.leave(pool.id), pool.node)
    world.send(world.contracts.remove_node(pool.node.address), pool.provider)
    world.send(world.contracts.unbond(100 * TOKEN), pool.provider)
    ready = world.contracts.stake_of(pool.provider.address).withdrawable_at
    with refused("NotMember"):  # for judges its last work is too old; for its own signatures it is not
        pool.slash(pool.commitment(), world.person(), at=ready + 5)
    world.send(world.contracts.evidence(*contradiction(pool)), world.person(), at=ready + 10)
    stake = world.contracts.stake_of(pool.provider.address)
    assert (stake.bonded, stake.unbonding) == (0, 50 * TOKEN)


def test_a_quorum_alone_cannot_slash(world: Any, pool: Any, refused: Any) -> None:
    c = pool.commitment()
    for forged in (sign(pool.validators[0], world.domain, c), sign(pool.node, world.domain, pool.commitment(index=1))):
        with refused("WrongSigner"):
            pool.slash(c, world.person(), signature=forged)


def test_the_nodes_signature_alone_cannot_slash(world: Any, pool: Any, refused: Any) -> None:
    c = pool.commitment()
    one, two = pool.verdicts(c, 5)
    reporter = world.person()
    for verdicts in ([], [one]):
        with refused("QuorumMissing"):
            pool.slash(c, reporter, verdicts=verdicts)
    with refused("DuplicateVerdict"):
        pool.slash(c, reporter, verdicts=[one, one])
    with refused("QuorumMissing"):
        pool.slash(c, reporter, verdicts=[one, two] * 9)
    with refused("NotAValidator"):
        pool.slash(c, reporter, verdicts=[one, *pool.verdicts(c, 5, by=[NodeKey.generate()])])


def test_verdicts_count_only_for_their_own_commitment_reason_and_outcome(world: Any, pool: Any, refused: Any) -> None:
    c = pool.commitment()
    reporter = world.person()
    for verdicts in (
        pool.verdicts(c, 6),
        pool.verdicts(c, 5, outcome=1),
        pool.verdicts(pool.commitment(file=b"\x45" * 32), 5),
        pool.verdicts(pool.commitment(index=1), 5),
        pool.verdicts(pool.commitment(units=11), 5),
    ):
        with refused("NotAValidator"):
            pool.slash(c, reporter, verdicts=verdicts)


def test_the_contract_checks_signatures_over_the_works_name(world: Any, pool: Any) -> None:
    c = pool.commitment()
    separator = world.contracts.view("swarm", "domainSeparator")
    pool.slash(c, world.person(), signature=pool.node.sign_hash(keccak(b"\x19\x01" + separator + work_id(c))))
    assert world.contracts.member(pool.id, pool.node.address).evicted


def test_verdicts_do_not_carry_over_to_another_chain_or_contract(world: Any, pool: Any, refused: Any) -> None:
    c = pool.commitment()
    home = world.domain
    for foreign in (Domain(8453, home.contract), Domain(31337, world.contracts.addresses.vault)):
        world.domain = foreign
        try:
            verdicts, signature = pool.verdicts(c, 5), sign(pool.node, foreign, c)
        finally:
            world.domain = home
        with refused("NotAValidator"):
            pool.slash(c, pool.manager, verdicts=verdicts)
        with refused("WrongSigner"):
            pool.slash(c, pool.manager, signature=signature)


def test_a_malleated_verdict_is_refused(world: Any, pool: Any, refused: Any) -> None:
    c = pool.commitment()
    one, two = pool.verdicts(c, 5)
    flipped = two[:32] + (CURVE_ORDER - int.from_bytes(two[32:64])).to_bytes(32) + bytes([55 - two[64]])
    with refused("ECDSAInvalidSignatureS"):
        pool.slash(c, world.person(), verdicts=[one, flipped])


def test_only_members_are_slashed(world: Any, pool: Any, refused: Any) -> None:
    stranger = NodeKey.generate()
    c = type(pool.commitment())(pool.id, stranger.address, b"\x11" * 32, 0, b"\x44" * 32, 10, 0)
    with refused("NotMember"):
        pool.slash(c, world.person(), signature=sign(stranger, world.domain, c))


def contradiction(pool: Any, **changes: Any) -> tuple[Any, bytes, Any, bytes]:
    first = pool.commitment()
    second = type(first)(
        **{**{f: getattr(first, f) for f in first.__struct_fields__}, "file_root": b"\x55" * 32} | changes
    )
    signatures = [sign(pool.node, pool.world.domain, c) for c in (first, second)]
    return first, signatures[0], second, signatures[1]


def test_two_files_under_one_index_slash_by_themselves(world: Any, pool: Any, refused: Any) -> None:
    receipt = world.send(world.contracts.evidence(*contradiction(pool)), world.person())
    (slashed,) = [event for event in world.events(receipt) if isinstance(event, Slashed)]
    assert (slashed.reason, slashed.amount) == (4, 50 * TOKEN)
    with refused("NodeEvicted"):
        world.send(world.contracts.evidence(*contradiction(pool)), world.person())


def test_two_statements_of_a_trainer_about_one_step_slash_by_themselves(world: Any, pool: Any, refused: Any) -> None:
    """The Court knows no statements: their form as a commitment is what it is shown."""

    def stated(step: int, root: bytes) -> tuple[WorkCommitment, bytes]:
        statement = PolicyStatement(pool.id, 0, step, 0, bytes(32), root, b"\2" * 32, b"\3" * 32)
        commitment = statement.commitment(pool.node.address)
        return commitment, sign(pool.node, world.domain, commitment)

    with refused("NoContradiction"):
        world.send(world.contracts.evidence(*stated(7, b"\1" * 32), *stated(8, b"\1" * 32)), world.person())
    receipt = world.send(world.contracts.evidence(*stated(7, b"\1" * 32), *stated(7, b"\4" * 32)), world.person())
    (slashed,) = [event for event in world.events(receipt) if isinstance(event, Slashed)]
    assert (slashed.reason, slashed.amount, slashed.node) == (4, 50 * TOKEN, pool.node.address)


def test_two_claims_of_units_for_one_file_slash_by_themselves(world: Any, pool: Any) -> None:
    claims = contradiction(pool, file_root=pool.commitment().file_root, units=11)
    receipt = world.send(world.contracts.evidence(*claims), world.person())
    (slashed,) = [event for event in world.events(receipt) if isinstance(event, Slashed)]
    assert (slashed.reason, slashed.amount) == (4, 50 * TOKEN)


def test_commitments_that_do_not_contradict_are_no_evidence(world: Any, pool: Any, refused: Any) -> None:
    reporter = world.person()
    same = pool.commitment().file_root
    for changes in ({"index": 1}, {"policy_root": b"\x12" * 32}, {"file_root": same}):
        with refused("NoContradiction"):
            world.send(world.contracts.evidence(*contradiction(pool, **changes)), reporter)


def test_evidence_needs_both_signatures_of_the_node(world: Any, pool: Any, refused: Any) -> None:
    first, one, second, two = contradiction(pool)
    forged = sign(NodeKey.generate(), world.domain, second)
    for signatures in ((one, forged), (forged, two), (one, one)):
        with refused("WrongSigner"):
            world.send(world.contracts.evidence(first, signatures[0], second, signatures[1]), world.person())


def test_a_commitment_to_another_epoch_slashes_by_itself(world: Any, pool: Any) -> None:
    twice = contradiction(pool, file_root=pool.commitment().file_root, epoch=1)
    receipt = world.send(world.contracts.evidence(*twice), world.person())
    assert [event.reason for event in world.events(receipt) if isinstance(event, Slashed)] == [4]


def test_a_second_word_of_a_validator_convicts_it(world: Any, pool: Any, refused: Any) -> None:
    judge, reporter, c = pool.validators[0], world.person(), pool.commitment()
    first, second = pool.verdict(c, 0, 0), pool.verdict(c, 0, 0, values=b"\x01" * 32)
    other = pool.rechecked(c, 2, 5)
    said = {verdict: sign(judge, world.domain, verdict) for verdict in (first, second, other)}
    evidence = world.contracts.verdict_evidence
    with refused("NoContradiction"):
        world.send(evidence(pool.id, first.work, first, said[first], first, said[first]), reporter)
    with refused("WrongSigner"):  # looking again is no second word
        world.send(evidence(pool.id, first.work, first, said[first], other, said[other]), reporter)
    receipt = world.send(evidence(pool.id, first.work, first, said[first], second, said[second]), reporter)
    (slashed,) = [event for event in world.events(receipt) if isinstance(event, Slashed)]
    assert (slashed.node, slashed.reason, slashed.file_root) == (judge.address, 200, work_id(c))


def test_a_root_that_contradicts_another_word_convicts_its_validator(world: Any, pool: Any, refused: Any) -> None:
    c = pool.commitment()
    works = [Accepted(pool.id, c.node, 3, id, 10) for id in (work_id(c), bytes(32), b"\xff" * 32)]
    found, (file, _) = leaves_of(works)
    leaves = read_page(file, found.pages[0], Leaf)
    right, wrong = (EpochRoot(pool.id, 3, 7, found.root(), 30, bytes([n]) * 32) for n in (1, 2))
    own = next(one for one in leaves if one.work == work_id(c))
    leaf = (c.node, own.work, own.units, list(proof_of(leaves, own)))
    good, bad = pool.verdict(c, 0, 0), pool.verdict(c, 1, 8)
    roots, named = world.contracts.tally_evidence, world.contracts.leaf_evidence
    for number, judge in enumerate(pool.validators):
        one, two, accepts, refuses = (sign(judge, world.domain, each) for each in (right, wrong, good, bad))
        with refused("NoContradiction"):
            world.send(roots(right, one, right, one), pool.manager)
        with refused("NoContradiction"):
            world.send(named(right, one, leaf, good, accepts), pool.manager)
        with refused("NoContradiction"):
            world.send(named(right, one, (*leaf[:2], 11, leaf[3]), bad, refuses), pool.manager)
        call = named(right, one, leaf, bad, refuses) if number else roots(right, one, wrong, two)
        receipt = world.send(call, pool.manager)
        (slashed,) = [event for event in world.events(receipt) if isinstance(event, Slashed)]
        told = work_id(c) if number else right.root
        assert (slashed.node, slashed.reason, slashed.file_root) == (judge.address, 201, told)
    assert pool.info.validators == ()


def test_a_slash_of_different_findings_and_of_looking_again(world: Any, pool: Any, refused: Any) -> None:
    c, values = pool.commitment(), [b"\x07" * 32, b"\x08" * 32]
    statements = [pool.verdict(c, 2, 5, values[0]), pool.rechecked(c, 2, 5, values[1])]
    signed = [sign(key, world.domain, one) for key, one in zip(pool.validators, statements, strict=True)]
    for bits in (0, 1, 3):
        with refused("NotAValidator"):
            pool.slash(c, pool.manager, verdicts=signed, values=values, rechecked=bits)
    with refused("BadValues"):
        pool.slash(c, pool.manager, verdicts=signed, values=values[:1], rechecked=2)
    pool.slash(c, pool.manager, verdicts=signed, values=values, rechecked=2)
    assert pool.contracts.member(pool.id, c.node).evicted


def test_a_slash_in_dispute_while_the_bench_changes_is_settled_with_those_who_signed_it(
    world: Any, pool: Any, refused: Any
) -> None:
    former, late = pool.validators, pool.commitment(file=b"\x55" * 32, index=1)
    (proof,) = pool.earn(0, {pool.node.address: 1000}).values()
    late_words = pool.verdicts(late, 5)
    new = world.validators(2)
    world.send(world.contracts.propose_validators(pool.id, [one.address for one in new], 2), pool.manager)
    proposed_at = world.now()
    world.send(world.contracts.join(pool.id, "x"), pool.node)
    pool.slash(pool.commitment(), pool.manager, at=proposed_at + WINDOW - 10)
    world.send(world.contracts.apply_validators(pool.id), pool.manager, at=proposed_at + WINDOW)
    with refused("NotAValidator"):
        pool.slash(late, pool.manager, verdicts=late_words)
    world.put_up(pool.provider, world.contracts.case(1).bond)
    world.send(world.contracts.appeal(1), pool.provider)
    pool.validators = new  # the table that follows is theirs
    proof = pool.earn(4, {pool.node.address: 1500})[pool.node.address]
    with refused("CaseNotFinal"):
        pool.claim(1500, proof)
    stakes = [world.contracts.stake_of(world.contracts.node_info(one.address).owner).bonded for one in (*former, *new)]
    world.send(world.contracts.overturn(pool.id, pool.node.address), world.deployer)
    after = [world.contracts.stake_of(world.contracts.node_info(one.address).owner).bonded for one in (*former, *new)]
    assert [before - now for before, now in zip(stakes, after, strict=True)] == [0, 0, 0, 0]
    pool.claim(1500, proof)
    assert world.contracts.token_balance(pool.provider.address) == 1500 * 10**15
    assert world.contracts.stake_of(pool.provider.address).bonded == 100 * TOKEN
