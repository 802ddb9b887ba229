"""/status and the newest step's record in Prometheus's text format. What stands here is a contract: alerts count on it.

Names: intellect_<section>_<field> for plain numbers of /status, intellect_step_<field> for the newest step; tables
become one metric with a label (age of rollouts, environment, part of the step's time). What only grows is a counter and
ends in _total; seconds and bytes are in the names. No series is of a member: a pool has ten thousand. Reference:
docs/records.md ("Metrics of a node").
"""

import math
import shutil
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

SECTIONS = ("work", "training", "verdicts", "network_stats", "run", "blobs")
GROWING = {
    "work": ("files_committed", "files_accepted", "files_rejected", "units"),
    "verdicts": ("accepted", "rejected"),
    "network_stats": (
        *("messages_in", "messages_out", "bytes_in", "bytes_out", "requests_in", "requests_out"),
        *("dropped", "rejected", "faults"),
    ),
    "blobs": ("bytes_written", "damaged", "fetched_again", "not_fetched_again", "bytes_looked_at"),
}
"""Fields that count since the daemon's start, or since its journal's."""
RENAMED = {("run", "steps_total"): "intellect_run_last_step"}
"""A name that ends in _total is a counter's, and this is the step at which the run ends."""
LABELS = {
    "seconds": "part",
    "file_seconds": "stage",
    "staleness": "age",
    "reward_by_environment": "environment",
    "eval_reward_by_environment": "environment",
    "eval_length_by_target": "target",
    "eval_length_error_by_target": "target",
}
PEN = ("open", "held", "shut")
ALARMS = ("entropy_rise", "mismatch", "grad_norm", "reward_collapse", "no_signal")
REASONS = (
    ("work", "rejected_by_reason", "intellect_work_refusals", "own files that validators refused, by their reason"),
    ("verdicts", "by_reason", "intellect_verdicts_against", "own verdicts against a file, by their reason"),
)


def render(status: Mapping[str, Any]) -> str:
    """The text of /metrics. status: what /status says; its rows of members may be left out."""
    # Made anew for each answer: a gauge of a child process that has left would else be told for ever.
    registry = CollectorRegistry()
    registry.register(_Figures(status))
    ProcessCollector(registry=registry)
    return generate_latest(registry).decode()


class _Figures(Collector):
    """One answer's figures."""

    def __init__(self, status: Mapping[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        status = self._status
        for section in SECTIONS:
            yield from _section(section, status.get(section) or {})
        for section, table, name, what in REASONS:
            if reasons := (status.get(section) or {}).get(table):
                yield _table(CounterMetricFamily(name, what, labels=["reason"]), reasons)
        if board := status.get("board"):
            yield _table(
                CounterMetricFamily("intellect_board_messages", "what became of messages", labels=["what"]), board
            )
        training = status.get("training") or {}
        if training:
            yield from _step(training.get("latest") or {})
            yield _alarms(training.get("alarms") or [])
        if workers := (status.get("uses") or {}).get("workers"):
            yield _uses(workers)
        if processes := status.get("processes"):
            yield _restarts(processes)
        yield from _node(status.get("node") or {})
        yield from _rest(status.get("rest") or {})
        yield from _chain(status.get("network") or {})
        if members := status.get("members"):
            yield _table(
                GaugeMetricFamily("intellect_members", "members by how they are heard", labels=["state"]), members
            )


def _section(section: str, table: Mapping[str, Any]) -> Iterator[Metric]:
    for name, value in _numbers(table):
        full, what = f"intellect_{section}_{name}", f"{section}.{name} of /status"
        if name in GROWING.get(section, ()):
            yield CounterMetricFamily(full, what, value=value)
        else:
            yield GaugeMetricFamily(RENAMED.get((section, name), full), what, value=value)


def _step(record: Mapping[str, Any]) -> Iterator[Metric]:
    for name, value in _numbers(record):
        yield GaugeMetricFamily(f"intellect_step_{_clean(name)}", f"{name} of the newest step", value=value)
    for name, table in record.items():
        if isinstance(table, Mapping):
            label, full = LABELS.get(name, "name"), f"intellect_step_{_clean(name)}"
            yield _table(GaugeMetricFamily(full, f"{name} of the newest step", labels=[label]), table)


def _alarms(alarms: list[Mapping[str, Any]]) -> Metric:
    ringing = {alarm.get("name") for alarm in alarms}
    # All of them, the silent ones as 0: an alert on a series that is missing never fires.
    told = {name: float(name in ringing) for name in ALARMS}
    return _table(GaugeMetricFamily("intellect_alarm", "1 while the alarm rings", labels=["name"]), told)


def _uses(workers: Mapping[str, Mapping[str, Any]]) -> Metric:
    """Of all workers together: whose files they were stands in /status."""
    sums: dict[str, float] = {}
    for uses in workers.values():
        for use, count in uses.items():
            sums[use] = sums.get(use, 0) + count
    return _table(CounterMetricFamily("intellect_worker_files", "accepted files by their use", labels=["use"]), sums)


def _restarts(processes: list[Mapping[str, Any]]) -> Metric:
    family = CounterMetricFamily("intellect_process_restarts", "starts again of a child process", labels=["name"])
    return _table(family, {process.get("name", ""): process.get("restarts", 0) for process in processes})


def _node(node: Mapping[str, Any]) -> Iterator[Metric]:
    build = GaugeMetricFamily("intellect_build_info", "1; what runs here", labels=["version", "role"])
    build.add_metric([str(node.get("version", "")), str(node.get("role", ""))], 1.0)
    yield build
    if isinstance(uptime := node.get("uptime_seconds"), int | float):
        yield GaugeMetricFamily("intellect_uptime_seconds", "since the daemon's start", value=uptime)
    waited = "times that something had to wait until it could open a file"
    yield CounterMetricFamily("intellect_files_waited", waited, value=node.get("waited_for_files", 0))
    if pen := node.get("pen"):
        yield from _pen(pen)
    try:
        disk = shutil.disk_usage(node["state_dir"]) if node.get("state_dir") else None
    except OSError:
        disk = None
    if disk is not None:
        yield GaugeMetricFamily("intellect_disk_free_bytes", "on the disk of the state directory", value=disk.free)
        yield GaugeMetricFamily("intellect_disk_size_bytes", "of the disk of the state directory", value=disk.total)


def _pen(pen: Mapping[str, Any]) -> Iterator[Metric]:
    state = GaugeMetricFamily(
        "intellect_pen", "1 for the state it is in: only open promises anything", labels=["state"]
    )
    yield _table(state, {name: float(name == pen.get("state")) for name in PEN})
    fence = "newest step up to which nothing new is signed, -1 without"
    yield GaugeMetricFamily("intellect_pen_fence_step", fence, value=pen.get("fence", -1))
    adopted = "own words that others had kept, and this journal had not"
    yield CounterMetricFamily("intellect_pen_adopted_words", adopted, value=pen.get("adopted", 0))
    holds = "times that this key was heard elsewhere"
    yield CounterMetricFamily("intellect_pen_holds", holds, value=pen.get("holds", 0))


def _rest(rest: Mapping[str, Any]) -> Iterator[Metric]:
    if rest:
        paused = float(bool(rest.get("why")))
        yield GaugeMetricFamily(
            "intellect_paused", "1 while it takes no new work, by its owner's settings", value=paused
        )
        what = "works that a pause has cut short"
        yield CounterMetricFamily("intellect_pause_dropped", what, value=rest.get("dropped", 0))


def _chain(network: Mapping[str, Any]) -> Iterator[Metric]:
    if network:
        told = float(bool(network.get("rpc_ok")))
        yield GaugeMetricFamily("intellect_chain_answers", "1 while an RPC endpoint answers", value=told)
        yield GaugeMetricFamily(
            "intellect_chain_block", "the newest block that was seen", value=network.get("block", 0)
        )


def _table(family: Any, table: Mapping[str, Any]) -> Metric:
    """family with one series for each number of a table."""
    for key, value in _numbers(table):
        family.add_metric([str(key)], value)
    return family


def _numbers(table: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in table.items():
        # In Python a bool is an int: flags are told as 0 and 1.
        if isinstance(value, int | float) and math.isfinite(value):
            yield name, float(value)


def _clean(name: str) -> str:
    """A name as Prometheus allows them."""
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
