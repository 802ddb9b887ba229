"""/metrics as a contract: counters are counters, and no series is of a member."""

import re

import msgspec

from node.metrics.prometheus import GROWING, render
from node.network.interface import NetworkStats
from node.services.base import ServiceManager
from node.status import StatusPage

FULL = {
    "node": {
        **{"version": "1.2.3", "role": "worker", "uptime_seconds": 7.5, "state_dir": "/", "waited_for_files": 3},
        "pen": {"state": "held", "why": "it speaks elsewhere", "fence": 21, "adopted": 2, "holds": 1},
    },
    "network": {"block": 9, "rpc_ok": True},
    "work": {"files_committed": 3, "units": 7, "tokens_per_second": 2.5, "rejected_by_reason": {"wrong prompt": 2}},
    "verdicts": {"accepted": 4, "rejected": 1, "by_reason": {"units": 1}},
    "network_stats": msgspec.structs.asdict(NetworkStats()),
    "board": {"refused": 5},
    "members": {"healthy": 12, "dead": 1},
    "processes": [{"name": "engine", "restarts": 2}],
    "run": {"step": 3, "steps_total": 100},
    "rest": {"why": "paused", "dropped": 2},
    "blobs": {
        "bytes_written": 7,
        "damaged": 1,
        "fetched_again": 1,
        "not_fetched_again": 0,
        "bytes_looked_at": 9,
        "oldest_look_seconds": 5,
    },
}


def test_what_grows_is_a_counter_and_nothing_else_ends_in_total() -> None:
    text = render(FULL)
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)", text, re.M))
    names = {re.split(r"[{ ]", line)[0] for line in text.splitlines() if line and line[0] != "#"}
    for section, fields in GROWING.items():
        there = FULL[section]
        for field in fields:
            assert field not in there or kinds[f"intellect_{section}_{field}_total"] == "counter"
    assert all(kinds[name] == "counter" for name in names if name.endswith("_total"))
    assert {"process_resident_memory_bytes", "process_open_fds", "process_start_time_seconds"} <= names
    for line in (
        'intellect_build_info{role="worker",version="1.2.3"} 1.0',
        "intellect_uptime_seconds 7.5",
        "intellect_chain_answers 1.0",
        "intellect_chain_block 9.0",
        'intellect_work_refusals_total{reason="wrong prompt"} 2.0',
        'intellect_verdicts_against_total{reason="units"} 1.0',
        'intellect_board_messages_total{what="refused"} 5.0',
        'intellect_members{state="healthy"} 12.0',
        'intellect_process_restarts_total{name="engine"} 2.0',
        "intellect_run_last_step 100.0",
        "intellect_files_waited_total 3.0",
        'intellect_pen{state="held"} 1.0',
        'intellect_pen{state="shut"} 0.0',
        "intellect_pen_fence_step 21.0",
        "intellect_pen_adopted_words_total 2.0",
        "intellect_pen_holds_total 1.0",
        "intellect_blobs_damaged_total 1.0",
        "intellect_paused 1.0",
        "intellect_pause_dropped_total 2.0",
        "intellect_blobs_oldest_look_seconds 5.0",
    ):
        assert line.replace('role="worker",version="1.2.3"', 'version="1.2.3",role="worker"') in text or line in text, (
            line
        )
    assert re.search(r"^intellect_disk_free_bytes \d", text, re.M)


def test_no_series_is_of_a_member() -> None:
    """Ten thousand workers took over a second of the event loop at each look."""
    few = {"uses": {"workers": {f"0x{n:040x}": {"trained": 2, "stale": 1} for n in range(2)}}}
    many = {"uses": {"workers": {f"0x{n:040x}": {"trained": 2, "stale": 1} for n in range(3_000)}}}
    shown = render(many)
    assert 'intellect_worker_files_total{use="trained"} 6000.0' in shown and "0x0000" not in shown
    assert len(shown.splitlines()) == len(render(few).splitlines())
    assert "swarm" not in {name for name, rows in StatusPage(ServiceManager()).figures().items() if rows}


def test_a_node_that_has_just_begun_renders() -> None:
    assert "intellect_build_info" in render(StatusPage(ServiceManager()).figures())
    assert "intellect_disk" not in render({"node": {"state_dir": "/nowhere/at/all"}})
