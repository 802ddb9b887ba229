"""Logs: what is shown of them, through rotation, damage and a full disk."""

import json
import logging
from pathlib import Path

import pytest

from cli.logs import Follower, at_least, last_events
from cli.main import main
from node.logs import LogFile, log_files


def write(path: Path, *names: str, level: str = "info") -> None:
    with path.open("a") as file:
        file.writelines(
            json.dumps({"event": name, "level": level, "timestamp": "2026-11-22T10:00:00Z"}) + "\n" for name in names
        )


def names(events: list[dict[str, object]]) -> list[object]:
    return [event["event"] for event in events]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    directory = tmp_path / "node" / "logs"
    directory.mkdir(parents=True)
    return directory


def rotate(directory: Path) -> None:
    """What the daemon's handler does when a file is full."""
    files = log_files(directory)
    for newer, older in reversed(list(zip(files, files[1:], strict=False))):
        if newer.exists():
            newer.replace(older)


def test_the_last_events_are_gathered_over_rotated_files_and_by_their_level(logs: Path) -> None:
    write(log_files(logs)[0], "a", "b")
    rotate(logs)
    write(log_files(logs)[0], "c", level="warning")
    write(log_files(logs)[0], "d")
    assert names(last_events(logs, 3)) == ["b", "c", "d"]
    assert names(last_events(logs, 3, at_least("warning"))) == ["c"]


def test_following_misses_nothing_when_the_log_is_rotated_twice_between_two_looks(logs: Path) -> None:
    current = log_files(logs)[0]
    write(current, "before")
    follower = Follower(logs)
    write(current, "a")
    rotate(logs)
    write(current, "b")
    rotate(logs)
    write(current, "c")
    assert names(list(follower.new())) == ["a", "b", "c"]
    write(current, "d")
    assert names(list(follower.new())) == ["d"]
    follower.close()


def test_a_line_is_shown_once_it_is_whole_and_a_log_that_begins_later_is_found(logs: Path) -> None:
    current, follower = log_files(logs)[0], Follower(logs)
    assert list(follower.new()) == []
    current.write_text('{"event": "a"}\n{"eve')
    assert names(list(follower.new())) == ["a"]
    with current.open("a") as file:
        file.write('nt": "b"}\n')
    assert names(list(follower.new())) == ["b"]
    follower.close()


def test_what_a_full_disk_cut_is_shown_as_it_is(logs: Path) -> None:
    log_files(logs)[0].write_bytes(b'{"event": "cut by the di\n[1, 2]\n\n{"event": "whole"}\n')
    assert names(last_events(logs, 9)) == ['{"event": "cut by the di', "[1, 2]", "whole"]


def test_a_full_disk_costs_events_and_is_said_once_and_again_when_there_is_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "daemon.jsonl").symlink_to("/dev/full")
    handler = LogFile(tmp_path)
    record = logging.LogRecord("node", logging.INFO, "", 0, "something", None, None)
    for _ in range(3):
        handler.emit(record)
    said = capsys.readouterr().err
    assert said.count("cannot be written: No space left on device") == 1 and "Traceback" not in said
    full = handler.stream
    with pytest.raises(OSError):
        full.close()  # as rotation does
    (tmp_path / "daemon.jsonl").unlink()
    handler.emit(record)
    handler.close()
    expected = ["something", "log.lost: 3 events could not be written"]
    assert (tmp_path / "daemon.jsonl").read_text().splitlines() == expected


def test_the_command_cleans_what_strangers_wrote_and_shows_tracebacks_below(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    event = {
        "event": "rollout.refused",
        "level": "warning",
        "timestamp": "2026-11-22T10:00:01.5Z",
        "details": ["\x1b]0;owned\x07"],
        "exception": "Traceback\n  \x1b[31mline",
    }
    log_files(logs)[0].write_text(json.dumps(event) + "\n")
    assert main(["logs", "--state-dir", str(logs.parent)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\x07" not in shown
    assert shown.splitlines()[0].startswith("2026-11-22 10:00:01 warning  rollout.refused  details=")
    assert "    Traceback" in shown


def test_json_is_one_object_with_the_events(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(log_files(logs)[0], "a", "b")
    assert main(["logs", "--state-dir", str(logs.parent), "-n", "1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema_version"] == 1 and names(answer["events"]) == ["b"]


def test_a_directory_without_a_log_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "--state-dir", str(tmp_path / "nowhere")]) == 3
    assert "no daemon has run" in capsys.readouterr().err
