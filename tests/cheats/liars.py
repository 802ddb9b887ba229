"""Validators that lie, as engines that plug into the real swarm: the daemon around them is the honest one.

`python -m tests.cheats.liars NAME [engine options]` is a drop-in for `python -m node.inference.process`:
`intellect-node join --role validator --engine-command "python -m tests.cheats.liars 'false accuser'"`.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from node.inference import process, server
from node.inference.errors import EngineError
from node.inference.inspect import inspect
from node.inference.session import EngineSession
from node.inference.wire import Inspect, Inspected
from node.state.files import write_whole
from protocol.checks import Reason
from protocol.errors import ProtocolError
from protocol.messages import DIGEST
from protocol.rollout import ReportHeader, ReportRow, ValidatorReport, decode, decode_report, encode_report
from protocol.statements import VerdictOutcome
from protocol.values import mean_logprobs, reward_tag, reward_tags

Liar = Callable[[EngineSession, Inspect], Inspected]


def false_accuser(session: EngineSession, order: Inspect) -> Inspected:
    """Says of every file that it solves the wrong problems: a fault that costs the stake."""
    found = inspect(session, order)
    return _changed(
        found, outcome=int(VerdictOutcome.SLASH), reason=int(Reason.WRONG_DRAW), detail="invented", report_path=""
    )


def statistical_accuser(session: EngineSession, order: Inspect) -> Inspected:
    """Says of every file that its activations are another model's."""
    found = inspect(session, order)
    lie = {"outcome": int(VerdictOutcome.REJECT), "reason": int(Reason.ACTIVATIONS), "detail": "invented", "group": 0}
    return _changed(found, report_path="", **lie)


def rubber_stamp(session: EngineSession, order: Inspect) -> Inspected:
    """Accepts everything unseen, with rewards and log-probabilities of its own invention, and a report of them."""
    rollout = session.run.rollout
    groups = tuple(range(rollout.prompts_per_file)) if order.groups is None else order.groups
    rewards = [1.0] * rollout.samples_per_file
    invented = {group: [np.full(1, -0.125, np.float32)] for group in groups}
    report = _invented_report(session, order, groups)
    return Inspected(
        id=order.id,
        outcome=int(VerdictOutcome.ACCEPT),
        reason=int(Reason.NONE),
        detail="",
        report_path=report,
        rewards_mean=1.0,
        tokens=rollout.samples_per_file,
        seconds=0.001,
        statistics={},
        checked=groups,
        rewards=reward_tags(rewards, rollout.group_size, ()),
        logprobs=mean_logprobs(invented),
    )


def poisoner(session: EngineSession, order: Inspect) -> Inspected:
    """Looks honestly, and says the contrary of every reward: what is right teaches the model to be wrong."""
    found = inspect(session, order)
    if found.outcome != VerdictOutcome.ACCEPT or not found.report_path:
        return found
    path, rollout = Path(found.report_path), session.run.rollout
    report = decode_report(path.read_bytes(), rollout.samples_per_file)
    rows = tuple(msgspec.structs.replace(row, reward=1.0 - row.reward) for row in report.rows)
    write_whole(path, encode_report(ValidatorReport(report.header, rows)))
    tags = bytearray(found.rewards)
    for group in {row.group for row in rows}:
        tag = reward_tag([row.reward for row in rows if row.group == group])
        tags[DIGEST * group : DIGEST * (group + 1)] = tag
    return _changed(found, rewards=bytes(tags))


def spiked(session: EngineSession, order: Inspect) -> Inspected:
    """Looks honestly, and says log-probabilities of the right mean: all of them on an answer's first token."""
    found = inspect(session, order)
    if found.outcome != VerdictOutcome.ACCEPT or not found.report_path:
        return found
    path = Path(found.report_path)
    report = decode_report(path.read_bytes(), session.run.rollout.samples_per_file)
    rows = tuple(
        msgspec.structs.replace(row, logprobs=[sum(row.logprobs), *[0.0] * (len(row.logprobs) - 1)])
        for row in report.rows
    )
    write_whole(path, encode_report(ValidatorReport(report.header, rows)))
    return found


def lazy_stamp(session: EngineSession, order: Inspect) -> Inspected:
    """Puts nothing through the model and says so, hoping that nobody looks at its lots."""
    return inspect(session, msgspec.structs.replace(order, groups=()))


def silent(session: EngineSession, order: Inspect) -> Inspected:
    """Alive, and never says a word."""
    raise EngineError("no verdict", "this validator keeps silent", "ask another one")


LIARS: dict[str, Liar] = {
    "false accuser": false_accuser,
    "statistical accuser": statistical_accuser,
    "rubber stamp": rubber_stamp,
    "poisoner": poisoner,
    "spiked": spiked,
    "lazy stamp": lazy_stamp,
    "silent": silent,
}


def _changed(found: Inspected, **changes: object) -> Inspected:
    return msgspec.structs.replace(found, **changes)


def _invented_report(session: EngineSession, order: Inspect, groups: tuple[int, ...]) -> str:
    """A report of the right form that holds what the verdict says; none for a file that cannot be read."""
    try:
        batch = decode(Path(order.path).read_bytes(), session.run.rollout.samples_per_file)
    except ProtocolError:
        return ""
    rows = tuple(
        ReportRow(row.group, row.sample, 1.0, [-0.125] * len(row.output)) for row in batch.rows if row.group in groups
    )
    report = ValidatorReport(ReportHeader(order.file_root.hex(), order.policy_root.hex()), rows)
    if rows:
        write_whole(Path(order.report_path), encode_report(report))
    return order.report_path if rows else ""


def main() -> None:
    """Serve as the liar that the first argument names."""
    if len(sys.argv) < 2 or sys.argv[1] not in LIARS:
        sys.exit(f"which lie? one of: {', '.join(LIARS)}")
    server.inspect = LIARS[sys.argv.pop(1)]
    process.main()


if __name__ == "__main__":
    main()
