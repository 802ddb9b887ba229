"""The dashboard for Grafana asks only for metrics that a daemon renders."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from node.metrics.prometheus import render
from node.network.interface import NetworkStats
from node.services.base import ServiceManager
from node.status import StatusPage
from node.status_schema import PenPart
from tests.swarms import status

DOCS = Path(__file__).resolve().parents[3] / "docs"
METRIC = re.compile(r"\b(?:intellect|process)_\w+")
LABEL = re.compile(r"\{\{(\w+)\}\}")


def rendered() -> dict[str, set[str]]:
    """Metric -> its labels: of a full status whose parts are the daemon's own where it has them without services, with
    every name on record that docs/records.md explains."""
    record = {name: 1.0 for name in documented()}
    tables = {"staleness": {"1": 2}, "seconds": {"load": 0.1}, "file_seconds": {"fetch": 0.1}}
    whole = status()
    whole["training"] |= {"latest": record | tables}
    empty = StatusPage(ServiceManager()).figures()
    whole |= {"verdicts": empty["verdicts"], "work": empty["work"]}
    whole["blobs"] = {"damaged": 1, "fetched_again": 1, "not_fetched_again": 0, "oldest_look_seconds": 1.0}
    whole["node"] |= {"state_dir": "/", "pen": msgspec.structs.asdict(PenPart())}
    whole["network_stats"] = msgspec.structs.asdict(NetworkStats())
    found: dict[str, set[str]] = {}
    for line in render(whole).splitlines():
        if line and not line.startswith("#"):
            name, _, labels = line.partition(" ")[0].partition("{")
            found.setdefault(name, set()).update(re.findall(r"(\w+)=", labels))
    return found


def documented() -> set[str]:
    """Names in the first column of the table of what is on record."""
    text = (DOCS / "records.md").read_text(encoding="utf-8")
    rows = [line for line in text.partition("## Recipes")[0].splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def targets() -> list[dict[str, Any]]:
    board = json.loads((DOCS / "grafana.json").read_text(encoding="utf-8"))
    return [target for panel in board["panels"] for target in panel["targets"]]


def test_every_metric_and_label_of_the_dashboard_is_rendered() -> None:
    known = rendered()
    assert len(known) > 60 and len(targets()) > 25
    for target in targets():
        (name,) = METRIC.findall(target["expr"])
        assert name in known, name
        assert set(LABEL.findall(target["legendFormat"])) <= known[name] | {"instance"}, target


def test_a_name_that_nobody_renders_is_found() -> None:
    """The control."""
    assert "intellect_step_no_such_thing" not in rendered()
