"""Environments behind real servers: what is heard, what is not told, and what a bad server does to nobody."""

import json
import os
import resource
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.sync.server import ServerConnection, serve

from node.environments.base import Segment, Transcript
from node.environments.errors import EnvironmentFault, Undecided
from node.environments.registry import load_environment
from node.environments.server.dial import LOCAL_SERVERS
from node.environments.server.environment import ServerEnvironment
from node.environments.server.mcp import _Program
from node.environments.server.openenv import OpenEnvEpisode
from protocol.run import EnvironmentSpec
from tests.node.environments.servers import SECRET, certified, mcp, openenv
from tests.node.environments.tokens import Characters


@pytest.fixture(autouse=True)
def local_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOCAL_SERVERS, "1")


def load(folder: Path, url: str, **args: Any) -> ServerEnvironment:
    rows = [{"problem_id": str(n), "prompt": f"digit {n}?", "reset": {"seed": n}} for n in range(8)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"path": "rows.jsonl", "url": url, "turns": 3, "held_back_share": 0.5, "seconds": 5.0, **args}
    found = load_environment(EnvironmentSpec(name="server", args=given), folder, Characters())
    assert isinstance(found, ServerEnvironment)
    return found


def play(environment: ServerEnvironment, *said: str) -> tuple[Transcript, float]:
    """(the rollout, its reward) of the first problem."""
    transcript: list[Segment] = []
    for text in said:
        transcript.append(Segment(Characters().encode(f"{text}\n"), sampled=True))
        reply = environment.step(environment.problem(0), transcript) if text is not said[-1] else None
        if reply:
            transcript.append(Segment(reply, sampled=False))
    return transcript, environment.score([environment.problem(0)], [transcript])[0]


def told(transcript: Transcript) -> str:
    return "".join(Characters().decode(one.tokens) for one in transcript if not one.sampled)


def test_an_openenv_episode_goes_on_over_its_turns_and_shows_one_field_only(tmp_path: Path) -> None:
    with openenv() as url:
        environment = load(tmp_path, url)
        right = environment.problem(0).problem_id
        rollout, reward = play(environment, "9", right)
        assert "not 9" in told(rollout) and SECRET not in told(rollout)
        assert reward == 1.0 and environment.step(environment.problem(0), rollout) is None
        assert play(environment, "9", "8 or so")[1] == 0.0 and environment.gave_up == 0
        environment.close()


def test_an_episode_that_was_not_kept_is_played_again_from_its_answers(tmp_path: Path) -> None:
    with openenv() as url:
        environment = load(tmp_path, url)
        rollout, _ = play(environment, "9", "8", "7")
        again = environment.another()
        assert again.step(environment.problem(0), rollout[:3]) == rollout[3].tokens
        assert again.score([environment.problem(0)], [rollout]) == [0.0]
        environment.close()
        again.close()


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    """(the port of an encrypted server game.example, names looked up). Every name leads to it, the first time only."""
    asked: list[str] = []
    resolve = socket.getaddrinfo

    def resolved(host: str, *rest: Any, **more: Any) -> Any:
        if not host.endswith(".example"):
            return resolve(host, *rest, **more)
        asked.append(host)
        return resolve("127.0.0.1" if asked.count(host) == 1 else "127.0.0.9", *rest, **more)

    tls, authority = certified("game.example", tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with openenv(tls=tls) as url:
        yield url.rpartition(":")[2].partition("/")[0], asked


def test_an_encrypted_server_is_spoken_to_at_the_address_that_was_compared(
    tmp_path: Path, named: tuple[str, list[str]]
) -> None:
    port, asked = named
    environment = load(tmp_path, f"wss://game.example:{port}/ws")
    rollout, reward = play(environment, "9", environment.problem(0).problem_id)
    assert "not 9" in told(rollout) and reward == 1.0 and asked == ["game.example"]
    environment.close()


def test_a_server_whose_certificate_is_for_another_name_or_of_no_known_authority_is_not_believed(
    tmp_path: Path, named: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = load(tmp_path, f"wss://other.example:{named[0]}/ws")
    with pytest.raises(Undecided, match="not valid for 'other.example'"):
        play(refused, "9", "8")
    monkeypatch.delenv("SSL_CERT_FILE")
    stranger = load(tmp_path, f"wss://game.example:{named[0]}/ws")
    with pytest.raises(Undecided, match="certificate verify failed"):
        play(stranger, "9", "8")


def test_a_server_that_sends_its_members_elsewhere_is_not_followed(tmp_path: Path) -> None:
    def elsewhere(link: ServerConnection, request: Request) -> Response:
        return Response(302, "Found", Headers(Location="ws://127.0.0.9:1/ws"), b"")

    with serve(lambda link: None, "127.0.0.1", 0, process_request=elsewhere) as server, ThreadPoolExecutor() as threads:
        threads.submit(server.serve_forever)
        environment = load(tmp_path, f"ws://127.0.0.1:{server.socket.getsockname()[1]}/ws")
        try:
            with pytest.raises(Undecided, match="redirect"):
                play(environment, "9", "8")
        finally:
            server.shutdown()


def test_an_encrypted_server_that_reads_nothing_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls, authority = certified("localhost", tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    over = threading.Event()

    def open_and_wait() -> None:
        with tls.wrap_socket(listener.accept()[0], server_side=True) as link:
            words = ServerProtocol()
            words.receive_data(link.recv(1 << 16))
            words.send_response(words.accept(words.events_received()[0]))  # type: ignore[arg-type]
            link.sendall(b"".join(words.data_to_send()))
            over.wait(20)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as server:
        waits = server.submit(open_and_wait)
        episode = OpenEnvEpisode(f"wss://localhost:{listener.getsockname()[1]}/ws", 5.0, "message", "message")
        episode._seconds = 0.5
        with pytest.raises(Undecided):
            episode.say("x" * (32 << 20))
        assert not waits.done(), "the server gave up before we did"
        over.set()
        episode.close()


@contextmanager
def stdio(command: str = f"{sys.executable} -m tests.node.environments.servers") -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INTELLECT_NODE_MCP_DOUBLES", command)
        yield "stdio:doubles"


@pytest.mark.parametrize("server", [mcp, stdio])
def test_mcp_tools_are_called_and_the_grader_is_out_of_the_models_reach(tmp_path: Path, server: Any) -> None:
    with server() as url:
        environment = load(tmp_path, url, protocol="mcp")
        call = '<call>{"name": "double", "arguments": {"n": 4}}</call>'
        rollout, reward = play(environment, call, "8")
        assert "<result> 8 </result>" in " ".join(told(rollout).split()) or "<result>8</result>" in told(rollout)
        assert reward == 1.0 and play(environment, call, "9")[1] == 0.0
        asked, _ = play(environment, '<call>{"name": "score", "arguments": {"answer": "8"}}</call>', "7")
        assert "there is no tool 'score'" in told(asked)
        assert "cannot be called so" in told(play(environment, '<call>{"name": "none"}</call>', "7")[0])
        deep = '{"name": "double", "arguments": {"n": ' + "[" * 3000
        assert "nested too deeply" in told(play(environment, f"<call>{deep}</call>", "7")[0])
        environment.close()


def test_a_program_is_heard_in_a_process_of_many_descriptors(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 2048:
        pytest.skip("this machine lets nobody open as many")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, before[1]))
    with ExitStack() as opened, stdio() as url:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        while opened.enter_context(open(os.devnull)).fileno() < 1024:
            pass
        environment = load(tmp_path, url, protocol="mcp")
        assert play(environment, '<call>{"name": "double", "arguments": {"n": 4}}</call>', "8")[1] == 1.0
        environment.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda told: (time.sleep(2), told)[1],
        lambda told: told | {"data": told["data"] | {"observation": {"message": "x" * (2 << 20)}}},
        lambda told: told | {"data": {"observation": []}},
        lambda told: told | {"type": "state"},
        lambda told: {"type": "error", "data": {"message": "", "code": "CAPACITY_REACHED"}},
    ],
    ids=["slow", "endless", "another form", "another message", "full"],
)
def test_a_server_in_trouble_is_undecided_and_pays_nobody(tmp_path: Path, change: Any) -> None:
    with openenv(change) as url:
        environment = load(tmp_path, url, seconds=0.5)
        answer = [Segment(Characters().encode("1\n"), sampled=True)]
        with pytest.raises(Undecided):
            environment.step(environment.problem(0), answer)
        assert environment.score([environment.problem(0)], [answer]) == [0.0] and environment.gave_up == 1
        environment.close()


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("", "names no program"),
        ("/nowhere", "No such file"),
        ("true", "the program ended|Broken pipe"),
        ("sleep 60", "not answer in time"),
        ("yes", "Expected|malformed|invalid"),
        ("head -c 3000000 /dev/zero", "too long"),
        (shlex.join([sys.executable, "-c", """print('{"id":1,"result":' + "[" * 100_000)"""]), "recursion"),
    ],
)
def test_a_program_in_trouble_is_undecided_and_leaves_no_process(tmp_path: Path, command: str, why: str) -> None:
    with stdio(command) as url:
        environment = load(tmp_path, url, protocol="mcp", seconds=0.5)
        before = children()
        with pytest.raises(Undecided, match=why):
            environment.step(environment.problem(0), [Segment(Characters().encode("1\n"), sampled=True)])
        assert children() == before


def test_an_episode_ends_although_a_child_that_left_its_programs_group_holds_the_output(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    with stdio(
        f"sh -c 'setsid sh -c \"echo \\$\\$ > {told}.new; mv {told}.new {told}; exec sleep 10\" & exec sleep 60'"
    ):
        program = _Program("doubles", 1.0)
        while not told.exists():
            time.sleep(0.01)
        program.close()
    left = int(told.read_text())
    state = Path(f"/proc/{left}/stat").read_text().rpartition(")")[2].split()[0]
    assert state in ("R", "S", "D"), "nobody waited for its end"  # "R": a busy machine has it on its way into the sleep
    os.kill(left, signal.SIGKILL)


def children() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


@pytest.mark.parametrize("reward", [1.5, -1.0, float("nan"), None])
def test_a_reward_that_is_none_is_the_floor(tmp_path: Path, reward: float | None) -> None:
    with openenv(lambda told: told | {"data": told["data"] | {"reward": reward}}) as url:
        environment = load(tmp_path, url)
        given = environment.score([environment.problem(0)], [[Segment(Characters().encode("1\n"), sampled=True)]])
        assert given == [0.0]
        environment.close()


def test_a_run_reaches_nothing_beside_a_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOCAL_SERVERS)
    with openenv() as url:
        environment = load(tmp_path, url)
        with pytest.raises(Undecided, match="not on the public internet"):
            environment.step(environment.problem(0), [Segment(Characters().encode("1\n"), sampled=True)])


@pytest.mark.parametrize(
    "url", ["http://h/ws", "ws://", "ws://a:b@h/ws", "ws://h:0/ws", "ws://h:99999/", "file:///etc", "stdio:doubles"]
)
def test_an_address_that_is_none_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(EnvironmentFault):
        load(tmp_path, url)
