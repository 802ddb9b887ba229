"""What somebody who looks at a pool without joining it knows of who leads."""

import msgspec

from contracts.bindings import ChairInfo
from node.member import be_told
from node.swarm.terms import Terms
from protocol.identity import Address

MANAGER, FIRST, SECOND = (Address(f"0x{digit * 40}") for digit in "abc")
CHAIR = ChairInfo(
    pool=1,
    trainers=(FIRST, SECOND),
    lease_seconds=60,
    grace_seconds=10,
    proposed=(),
    proposed_from=0,
    term=0,
    place=0,
    ended=False,
    until=1000,
    from_step=0,
    reached=0,
    parent=bytes(32),
)


def test_a_guest_goes_by_the_manager_by_the_chair_and_by_whoever_takes_it() -> None:
    terms = Terms(MANAGER, lambda: 0.0)
    be_told(terms, None)
    assert terms.now.holder == MANAGER and not terms.seated
    be_told(terms, CHAIR)
    assert terms.counts(FIRST, 0, 5) and not terms.counts(MANAGER, 0, 5)
    taken = msgspec.structs.replace(CHAIR, term=1, place=1, from_step=3, parent=b"\x07" * 32)
    be_told(terms, taken)
    assert terms.counts(SECOND, 1, 3, taken.parent) and terms.counts(SECOND, 1, 4)
    assert terms.counts(FIRST, 0, 2) and not terms.counts(FIRST, 0, 3)
    be_told(terms, CHAIR)  # an endpoint that is behind
    assert terms.now.holder == SECOND
