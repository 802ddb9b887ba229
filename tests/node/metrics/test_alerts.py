"""The alert rules for Prometheus ask only for metrics that a daemon renders, and ring when they shall."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from node.metrics.prometheus import render
from tests.node.metrics.test_grafana import DOCS, rendered
from tests.node.metrics.test_prometheus import FULL

RULES = DOCS / "alerts.yml"
EXPRESSION = re.compile(r"expr: (.*)")
METRIC = re.compile(r"\b(?:intellect|process)_\w+")
PROMTOOL = os.environ.get("PROMTOOL") or shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not here (Debian: prometheus; or PROMTOOL=)")
RINGS = """
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'up{{job="intellect-node",instance="a"}}', values: '1x5 0x30'}}
      - {{series: 'intellect_blobs_damaged_total{{instance="a"}}', values: '0x10 1x30'}}
      - {{series: 'intellect_blobs_damaged_total{{instance="b"}}', values: '7x40'}}
      - {{series: 'intellect_work_files_committed_total{{instance="a"}}', values: '0+10x200'}}
      - {{series: 'intellect_work_files_rejected_total{{instance="a"}}', values: '0+5x200'}}
      - {{series: 'intellect_work_files_committed_total{{instance="b"}}', values: '0+10x200'}}
      - {{series: 'intellect_work_files_rejected_total{{instance="b"}}', values: '0+1x200'}}
      - {{series: 'intellect_pen_holds_total{{instance="a"}}', values: '0x10 1x200'}}
      - {{series: 'intellect_pen{{instance="b",state="shut"}}', values: '1x5 0x200'}}
      - {{series: 'intellect_pen{{instance="c",state="shut"}}', values: '1x200'}}
      - {{series: 'intellect_files_waited_total{{instance="a"}}', values: '0x10 4x200'}}
    alert_rule_test:
      - {{eval_time: 9m, alertname: KeyElsewhere, exp_alerts: []}}
      - {{eval_time: 12m, alertname: KeyElsewhere, exp_alerts: [{{exp_labels: {{severity: page, instance: a}},
          exp_annotations: {{summary: the key of a speaks elsewhere,
            description: 'Nothing is signed here while it is heard. Stop one of the two daemons: docs/moving.md.'}}}}]}}
      - {{eval_time: 15m, alertname: PenShut, exp_alerts: [{{exp_labels: {{severity: page, instance: c, state: shut}},
          exp_annotations: {{summary: 'c does not know what its key has signed, and signs nothing',
            description: 'No member answers it: intellect-node status says what it waits for, docs/moving.md what to do.'}}}}]}}
      - {{eval_time: 9m, alertname: FilesWaitedFor, exp_alerts: []}}
      - {{eval_time: 12m, alertname: FilesWaitedFor, exp_alerts: [{{exp_labels: {{severity: page, instance: a}},
          exp_annotations: {{summary: a could open no file for a while,
            description: "It waits, and so does its work: raise LimitNOFILE of its unit, or look for what holds the machine's descriptors."}}}}]}}
      - {{eval_time: 4m, alertname: NodeDown, exp_alerts: []}}
      - {{eval_time: 30m, alertname: NodeDown, exp_alerts: [{{exp_labels: {{severity: page, job: intellect-node, instance: a}},
          exp_annotations: {{summary: a does not answer,
            description: 'Its daemon has ended, or hangs: intellect-node status, then intellect-node logs -n 50.'}}}}]}}
      - {{eval_time: 9m, alertname: BlobsDamaged, exp_alerts: []}}
      - {{eval_time: 20m, alertname: BlobsDamaged, exp_alerts: [{{exp_labels: {{severity: ticket, instance: a}},
          exp_annotations: {{summary: the disk of a has changed what it holds,
            description: 'What was damaged was fetched again. Look at the disk (smartctl, dmesg) before it takes the journal.'}}}}]}}
      - {{eval_time: 25m, alertname: WorkRefused, exp_alerts: []}}
      - {{eval_time: 180m, alertname: WorkRefused, exp_alerts: [{{exp_labels: {{severity: page, instance: a}},
          exp_annotations: {{summary: more than a fifth of the work of a is refused,
            description: "intellect-node contributions has the reasons. Refused often enough, an honest node with a bad machine loses its stake."}}}}]}}
"""  # noqa: E501 - one of them is a line


def test_every_metric_of_the_rules_is_rendered() -> None:
    known = rendered() | dict.fromkeys(re.findall(r"^(\w+)", render(FULL), re.MULTILINE), set())
    expressions = EXPRESSION.findall(RULES.read_text(encoding="utf-8"))
    asked = {name for expression in expressions for name in METRIC.findall(expression)}
    assert len(expressions) > 8 and len(asked) > 8
    assert asked <= known.keys(), asked - known.keys()


@needs_promtool
def test_the_rules_are_sound_and_ring_for_who_they_shall(tmp_path: Path) -> None:
    """By Prometheus's own tool."""
    case = tmp_path / "case.yml"
    case.write_text(RINGS.format(rules=RULES), encoding="utf-8")
    for words in (["check", "rules", str(RULES)], ["test", "rules", str(case)]):
        done = subprocess.run([str(PROMTOOL), *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
