"""`task` against a socket that answers like a trainer's daemon, and a state directory as one leaves it."""

import http.server
import json
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.main import main
from node.config import api_socket_path
from node.light_client import check_announced
from node.tasks.records import ShardRecord, TaskFolder
from node.training.warmstart import SORT_ALPHABET, write_tokenizer
from node.weights.errors import PolicyUnknown
from protocol.blobs import describe
from protocol.identity import Address
from protocol.pretraining import Diloco
from protocol.rollout import (
    ReportHeader,
    ReportRow,
    RolloutBatch,
    RolloutHeader,
    SampleRow,
    ValidatorReport,
    encode,
    encode_report,
)
from protocol.run import EnvironmentSpec, RolloutSpec, RunSpec, encode_run
from protocol.tasks import TaskSpec, encode_task, task_id

POLICY = "ab" * 32
NODE = "0x" + "11" * 20
RUN = RunSpec(
    name="tiny",
    environment=EnvironmentSpec(name="sort", args={"digits": 2, "held_back": 10}),
    rollout=RolloutSpec(max_prompt_tokens=8, max_output_tokens=8),
)


class Trainer(socketserver.ThreadingUnixStreamServer):
    """Does every task at once: problem n is solved by every other answer. told: what it was asked for."""

    daemon_threads = True

    def __init__(self, directory: Path) -> None:
        socket = api_socket_path(directory)
        socket.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(str(socket), _Handler)
        self.directory = directory
        self.folders: list[TaskFolder] = []
        self.told: list[dict[str, Any]] = []

    def offer(self, request: dict[str, Any]) -> str:
        self.told.append(request)
        spec = msgspec.structs.replace(msgspec.convert(request["spec"], TaskSpec), policy=POLICY, step=3)
        encoded = encode_task(spec)
        folder = TaskFolder(self.directory / "tasks" / task_id(encoded).hex())
        folder.create(encoded)
        for shard in range(spec.shards):
            self._do(folder, spec, shard)
        folder.close()
        self.folders.append(folder)
        return folder.path.name

    def _do(self, folder: TaskFolder, spec: TaskSpec, shard: int) -> None:
        places = [(g, n, s) for g, n in enumerate(spec.numbers(shard)) for s in range(spec.samples)]
        header = RolloutHeader(1, Address(NODE), folder.path.name, shard)
        rows = tuple(SampleRow(g, s, self.name(n), [2, 3], [4, 1], True, b"") for g, n, s in places)
        values = tuple(ReportRow(g, s, float(s % 2 and n % 2), [-1.0, -1.0]) for g, n, s in places)
        file = self.directory / "file"
        data = encode(RolloutBatch(header, rows))
        file.write_bytes(data)
        root = describe(data).root.hex()
        record = ShardRecord(shard, NODE, "ef" * 32, root, 10, "01" * 65, (), 1.0)
        folder.add(record, file, encode_report(ValidatorReport(ReportHeader(root, folder.path.name), values)))

    def name(self, number: int) -> str:
        return f"row-{number}"

    def tasks(self) -> list[dict[str, Any]]:
        return [
            {
                "id": folder.path.name,
                "kind": folder.spec().kind,
                "open": False,
                "shards": folder.spec().shards,
                "gathered": len(folder.done()),
                "seconds": 3.0,
                "taken_over": 1,
                "path": str(folder.path),
            }
            for folder in self.folders
        ]


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Trainer

    def do_GET(self) -> None:
        if self.path == "/tasks":
            self._answer({"tasks": self.server.tasks()})
        else:
            self._answer({"schema_version": 1, "tasks": {"known": self.server.tasks(), "own": self.server.tasks()}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if self.path == "/tasks" and body["policy"] != "newest":
            self._answer({"what": "the policy is not here", "why": "it holds step 3", "remedy": "name it"}, 400)
        else:
            self._answer({"task": self.server.offer(body)} if self.path == "/tasks" else {"cancelled": True})

    def _answer(self, value: dict[str, Any], code: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return

    def address_string(self) -> str:
        return ""


@pytest.fixture
def trainer(tmp_path: Path, runtime: Path) -> Iterator[Trainer]:
    directory = tmp_path / "node"
    encoded = encode_run(RUN)
    lay_out(directory, encoded)
    with Trainer(directory) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def lay_out(directory: Path, encoded: bytes) -> None:
    """As a node of the run leaves its state directory."""
    root = describe(encoded).root.hex()
    model = directory / "run" / root[:16] / "model"
    model.mkdir(parents=True)
    write_tokenizer(model, SORT_ALPHABET)
    (model / "config.json").write_text('{"eos_token_id": 1}')
    (directory / "blobs" / "complete").mkdir(parents=True)
    (directory / "blobs" / "complete" / root).write_bytes(encoded)


def run(trainer: Trainer, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The object that a command prints."""
    assert main(["task", *words, "--state-dir", str(trainer.directory), "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_evaluate_asks_for_the_held_out_problems_and_tells_the_figures(
    trainer: Trainer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "figures.json"
    told = run(trainer, capsys, "evaluate", "--samples", "4", "--out", str(out))
    spec = trainer.told[0]["spec"]
    assert (spec["part"], spec["first"], spec["last"], spec["samples"]) == ("held_out", 0, 10, 4)
    assert told["result"]["mean"] == 0.25 and told["result"]["pass_at"]["4"] == 0.5 and told["task"]["taken_over"] == 1
    assert json.loads(out.read_text())["problems"] == 10


def test_filter_asks_for_every_row_and_writes_those_in_the_range(
    trainer: Trainer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = tmp_path / "rows.jsonl", tmp_path / "kept.jsonl"
    rows = [
        {"problem_id": f"row-{n}", "prompt": "12=", "task_type": "verifiable_math"}
        | {"verification_info": {"ground_truth": "12"}}
        for n in range(60)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = run(trainer, capsys, "filter", str(data), "--out", str(out), "--samples", "2", "--shard-size", "16")
    spec = trainer.told[0]["spec"]
    assert (spec["part"], spec["last"], spec["environment"]["name"]) == ("all", 60, "dataset")
    assert trainer.told[0]["files"] == {"data/rows.jsonl": str(data)}
    assert (told["result"]["rows"], told["result"]["kept"]) == (60, 30)
    kept = [json.loads(line) for line in out.read_text().splitlines()]
    assert kept == [{**row, "solve_rate": 0.5} for row in rows[1::2]]
    data.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"text": "no row"}]))
    run(trainer, capsys, "filter", str(data), "--out", str(out), "--samples", "2", "--nonce", "b", "--skip-bad-rows")
    args = trainer.told[1]["spec"]["environment"]["args"]
    assert (args["on_bad_row"], args["bad_rows"], trainer.told[1]["spec"]["last"]) == ("skip", 1, 60)


def test_generate_may_be_left_alone_and_exported_later(
    trainer: Trainer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "data.jsonl"
    told = run(trainer, capsys, "generate", "--problems", "5", "--out", str(out), "--no-wait")
    assert told["result"] is None and not out.exists()
    told = run(trainer, capsys, "export", told["task"]["id"][:8], "--out", str(out))
    row = json.loads(out.read_text().splitlines()[0])
    assert told["result"]["rows"] == 5
    assert (row["node"], row["policy_root"], row["prompt"]) == (NODE, POLICY, SORT_ALPHABET[0:2])


def test_status_shows_every_task_and_mistakes_are_told_with_their_exit_code(
    trainer: Trainer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(trainer, capsys, "evaluate")
    (task,) = run(trainer, capsys, "status")["tasks"]
    assert task["kind"] == "evaluate" and task["done"] == 0
    here = ["--state-dir", str(trainer.directory)]
    assert main(["task", "evaluate", "--policy", "99", *here]) == 6
    assert "the policy is not here" in capsys.readouterr().err
    assert main(["task", "evaluate", "--problems", "11", *here]) == 2
    assert "numbered 0 to 9" in capsys.readouterr().err
    assert main(["task", "filter", "x", "--out", "x", *here]) == 2
    assert main(["task", "filter", "x", "--out", "y", "--min", "1", "--max", "0", *here]) == 2
    assert main(["task", "filter", str(tmp_path / "none.jsonl"), "--out", "y", *here]) == 6
    assert main(["task", "judge", "ab" * 32, *here]) == 6
    assert main(["task", "evaluate", "--device", "tpu", *here]) == 2
    assert main(["task", "evaluate", "--model", "nowhere", *here]) == 6
    assert main(["task", "evaluate", "--model", "nowhere", "--policy", "3", *here]) == 2
    assert main(["task", "export", "zz", "--out", "y", *here]) == 2


def test_a_run_with_rounds_has_no_tasks_and_nothing_for_light_clients_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = msgspec.structs.replace(RUN, diloco=Diloco())
    lay_out(tmp_path / "node", encode_run(run))
    assert main(["task", "evaluate", "--state-dir", str(tmp_path / "node")]) == 2
    assert "no tasks in a run with rounds" in capsys.readouterr().err
    with pytest.raises(PolicyUnknown, match="nobody announces"):
        check_announced(run)
    check_announced(RUN)  # the control
