"""The five answers themselves: what is wrong, and for how long that is told."""

from cli.status import NOTHING_WRONG, answers, is_member, troubles
from node.status_schema import (
    ClockPart,
    DaemonStatus,
    EndpointPart,
    EventPart,
    NetworkPart,
    NodePart,
    PhasePart,
    RunPart,
)

WELL = DaemonStatus(node=NodePart(state="working", role="worker"), network=NetworkPart(name="n", pool=1, rpc_ok=True))


def test_trouble_is_told_with_its_age_and_not_for_ever() -> None:
    events = [EventPart("trouble", "the engine broke", at=1000.0), EventPart("accepted", "a file", at=1001.0)]
    status = DaemonStatus(node=WELL.node, network=WELL.network, events=events)
    assert troubles(status, 1060.0) == ["1 min 00 s ago: the engine broke"]
    assert troubles(status, 9999.0) == []
    assert answers(status, 9999.0)[-1] == ("wrong", [NOTHING_WRONG])
    assert answers(status, 9999.0, "the disk is full")[-1] == ("wrong", ["the disk is full"])


def test_a_clock_that_peers_see_astray_is_told_with_the_remedy() -> None:
    def told(ahead: float | None, peers: int = 5) -> list[str]:
        node = NodePart(state="working", role="worker", clock=ClockPart(ahead, peers))
        return troubles(DaemonStatus(node=node, network=WELL.network), 0.0)

    assert told(None) == told(3.0) == []
    assert told(86_400.0) == [
        "this clock is 24 h 00 min ahead of most of 5 peers, who do not believe what it says: timedatectl set-ntp true"
    ]
    assert told(-240.0) == ["this clock is 4 min 00 s behind most of 5 peers: timedatectl set-ntp true"]


def test_a_node_that_waits_for_its_stake_is_not_in_and_is_not_blamed_for_a_silent_chain() -> None:
    node = NodePart(state="starting", phase=PhasePart("stake", "waits for its stake", 5.0))
    needs = EventPart("do", "intellect-node keys new provider")
    status = DaemonStatus(node=node, network=NetworkPart(rpc_ok=False), run=RunPart(step=-1), events=[needs])
    assert not is_member(status) and troubles(status, 0.0) == []
    told = dict(answers(status, 0.0))
    assert told["am I in"][0] == "not yet"
    assert told["doing"] == ["waits for its stake, for 5 s", "intellect-node keys new provider"]
    assert not any("-1" in line for line in told["doing"])


def test_an_endpoint_that_differs_from_others_is_named_and_one_alone_is_told_as_such() -> None:
    def status(*endpoints: EndpointPart) -> DaemonStatus:
        network = NetworkPart(name="n", pool=1, rpc_ok=True, endpoints=list(endpoints))
        return DaemonStatus(node=WELL.node, network=network)

    one, two = EndpointPart("http://one", in_use=True), EndpointPart("http://two")
    assert any("one endpoint alone" in line for line in dict(answers(status(one), 0.0))["am I in"])
    assert not any("one endpoint alone" in line for line in dict(answers(status(one, two), 0.0))["am I in"])
    assert troubles(status(one, two), 0.0) == []
    liar = EndpointPart("http://liar", contradicted=3, disagreed=1)
    assert troubles(status(one, liar), 0.0) == [
        "http://liar told something else than two others, 3 times: see rpc_urls"
    ]
    slow = EndpointPart("http://slow", lags=True, disagreed=2)
    assert len(troubles(status(one, slow), 0.0)) == 2
