"""Orders carried out as an engine's process does, without one."""

from node.inference.inspect import inspect
from node.inference.produce import produce
from node.inference.session import EngineSession
from node.inference.wire import Inspect, Inspected, Produce, Produced


def produced_by(session: EngineSession, order: Produce) -> Produced:
    return produce(session.at(order), order)


def seen_by(session: EngineSession, order: Inspect) -> Inspected:
    return inspect(session.at(order), order)


def put(session: EngineSession, policy: bytes) -> None:
    """Have its engine compute with a policy."""
    session.at(Produce(policy_root=policy, node="0x" + "11" * 20, pool=1, index=0, out_path="")).put()
