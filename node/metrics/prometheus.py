"""/status and the newest step's record in Prometheus's text format.

Names: intellect_<section>_<field> for plain numbers of /status, intellect_step_<field> for the newest step; tables
become one metric with a label (age of rollouts, environment, part of the step's time). Reference of the step metrics:
docs/training.md.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest

SECTIONS = ("work", "training", "verdicts", "network_stats", "run")
LABELS = {
    "seconds": "part",
    "file_seconds": "stage",
    "staleness": "age",
    "reward_by_environment": "environment",
    "eval_reward_by_environment": "environment",
    "eval_length_by_target": "target",
    "eval_length_error_by_target": "target",
}
ALARMS = ("entropy_rise", "mismatch", "grad_norm", "reward_collapse", "no_signal")


def render(status: Mapping[str, Any]) -> str:
    """The text of /metrics. status: what /status says."""
    # Made anew for each answer: a gauge of a worker that has left would else be told for ever.
    registry = CollectorRegistry()
    for section in SECTIONS:
        for name, value in _numbers(status.get(section) or {}):
            Gauge(f"intellect_{section}_{name}", f"{section}.{name} of /status", registry=registry).set(value)
    training = status.get("training") or {}
    if training:
        _step(training.get("latest") or {}, registry)
        _alarms(training.get("alarms") or [], registry)
    if uses := (status.get("uses") or {}).get("workers"):
        _uses(uses, registry)
    if processes := status.get("processes"):
        _restarts(processes, registry)
    return generate_latest(registry).decode()


def _step(record: Mapping[str, Any], registry: CollectorRegistry) -> None:
    for name, value in _numbers(record):
        Gauge(f"intellect_step_{_clean(name)}", f"{name} of the newest step", registry=registry).set(value)
    for name, table in record.items():
        if isinstance(table, Mapping):
            label = LABELS.get(name, "name")
            gauge = Gauge(f"intellect_step_{_clean(name)}", f"{name} of the newest step", [label], registry=registry)
            for key, value in _numbers(table):
                gauge.labels(key).set(value)


def _alarms(alarms: list[Mapping[str, Any]], registry: CollectorRegistry) -> None:
    ringing = {alarm.get("name") for alarm in alarms}
    gauge = Gauge("intellect_alarm", "1 while the alarm rings", ["name"], registry=registry)
    for name in ALARMS:
        # All of them, the silent ones as 0: an alert on a series that is missing never fires.
        gauge.labels(name).set(float(name in ringing))


def _uses(workers: Mapping[str, Mapping[str, Any]], registry: CollectorRegistry) -> None:
    gauge = Gauge("intellect_worker_files", "accepted files by their use", ["node", "use"], registry=registry)
    for node, uses in workers.items():
        for use, count in _numbers(uses):
            gauge.labels(node, use).set(count)


def _restarts(processes: list[Mapping[str, Any]], registry: CollectorRegistry) -> None:
    gauge = Gauge("intellect_process_restarts", "starts again of a child process", ["name"], registry=registry)
    for process in processes:
        gauge.labels(process.get("name", "")).set(float(process.get("restarts", 0)))


def _numbers(table: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in table.items():
        if isinstance(value, int | float) and math.isfinite(value):
            yield name, float(value)


def _clean(name: str) -> str:
    """A name as Prometheus allows them."""
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
