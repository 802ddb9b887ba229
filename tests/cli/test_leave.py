"""Leaving: what is told of the stake and its way back, for every standing on chain."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cli.errors import CommandError
from cli.leave import LeaveOutcome, _intend, _key_of, _tell_chain, command
from cli.main import main
from contracts.bindings import NodeInfo, Stake
from node.chain.errors import RpcUnreachable
from node.errors import StateError
from node.state.directory import FACT
from node.state.journal import TABLE, Journal
from node.state.leave import LEAVING
from node.state.pay import PAY, PayRecord
from node.state.reader import StateFiles
from protocol.earnings import Accepted, EarningsLine
from protocol.identity import NodeKey, address_bytes
from protocol.pages import verify
from protocol.table import EarningsTable, encode_head

KEY = NodeKey(b"k" * 32)

NODE, PROVIDER, TOKEN = "0x" + "ab" * 20, "0x" + "cd" * 20, 10**18
INFO = NodeInfo(NODE, PROVIDER, 1, 0, 0, True, 1)  # type: ignore[arg-type]
LEFT = LeaveOutcome(INFO, 7, Stake(100 * TOKEN, 0, 0, 0), 100 * TOKEN, 3600, 1_000_000, ["--key", "me"])


def test_the_way_back_to_the_stake_is_one_whole_command_with_the_date() -> None:
    lines = LEFT.lines("base")
    assert lines[0] == f"{NODE}: left pool 7"
    assert [line.strip() for line in lines if line.startswith("  ")] == [
        f"intellect-node contract node retire {NODE} --network base --key me"
    ]
    assert LEFT.facts()["withdrawable_at"] == 1_003_600 and "1970-01-12 14:46 UTC" in lines[-1]


def test_the_provider_s_key_is_named_as_it_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed is to be copied: with the password that `join` made itself, or the name of a key that is here."""
    state, home = tmp_path / "a node", tmp_path / "home"
    monkeypatch.setenv("INTELLECT_NODE_HOME", str(home))
    state.mkdir()
    assert _key_of(PROVIDER, state, None) == ["--key", "PROVIDER"]  # type: ignore[arg-type]
    (home / "keys").mkdir(parents=True)
    (home / "keys" / "mine.json").write_text(json.dumps({"address": "cd" * 20}))
    (home / "keys" / "odd.json").write_text("[1")
    assert _key_of(PROVIDER, state, None) == ["--key", "mine"]  # type: ignore[arg-type]
    (state / "provider-key.json").touch()
    assert _key_of(PROVIDER, state, None) == ["--key", str(state / "provider-key.json")]  # type: ignore[arg-type]
    (state / "password").touch()
    found = _key_of(PROVIDER, state, None)  # type: ignore[arg-type]
    assert found[2:] == ["--password-file", str(state / "password")]
    line = next(one for one in replace(LEFT, key=found).lines("base") if one.startswith("  "))
    assert shlex.split(line)[-4:] == found, "with a space in its path, too"


def test_what_is_done_already_is_not_told_again() -> None:
    removed = replace(LEFT, node=NodeInfo(NODE, PROVIDER, 1, 0, 0, False, 1), free=0)  # type: ignore[arg-type]
    unbonding = replace(removed, stake=Stake(0, 100 * TOKEN, 1_002_000, 0))
    assert unbonding.steps() == LEFT.steps() and unbonding.facts()["withdrawable_at"] == 1_002_000
    nothing = replace(removed, stake=Stake(100 * TOKEN, 0, 0, 0))
    assert nothing.steps() == [] and "nothing of its stake is free" in nothing.lines("base")[-1]
    assert "nothing to unbond" in replace(LEFT, stake=None).lines("base")[-1]
    slashed = replace(LEFT, evicted=True, stake=Stake(60 * TOKEN, 0, 0, 40 * TOKEN))
    assert any("held until that is final, and 40 tokens are frozen" in line for line in slashed.lines("base"))


async def test_a_node_that_is_still_a_member_is_taken_out_of_its_pool() -> None:
    left: list[int] = []

    class Chain:
        pool = 5

        async def node_info(self, _: object) -> Any:
            return NodeInfo(NODE, PROVIDER, 1, self.pool, 0, True, 1)  # type: ignore[arg-type]

        async def leave(self, pool: int) -> None:
            left.append(pool)

    chain: Any = Chain()
    assert await _tell_chain(chain, NODE) == 5 and left == [5]  # type: ignore[arg-type]
    chain.pool = 0
    assert await _tell_chain(chain, NODE) == 0 and left == [5]  # type: ignore[arg-type]


def test_nothing_is_stopped_where_the_chain_could_not_be_told(
    tmp_path: Path, runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Journal(tmp_path / "journal.sqlite").close()
    assert command.__doc__ and main(["leave", "--state-dir", str(tmp_path)]) == 2
    assert "does not say" in capsys.readouterr().err
    journal = Journal(tmp_path / "journal.sqlite")
    journal.remember("network", b"local")
    journal.close()
    assert main(["leave", "--state-dir", str(tmp_path)]) == 4
    assert "there is no node in" in capsys.readouterr().err


@pytest.fixture
def state(tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stopped node with 40 units in a table of which 10 are claimed, 60 certified, and 7 that wait for verdicts."""
    monkeypatch.setattr("cli.leave._node_key", lambda *_: KEY)
    monkeypatch.setattr("cli.leave._on_chain", lambda *_: (4, 10, TOKEN, False))
    journal, own = Journal(tmp_path / "journal.sqlite"), KEY.address
    record = PayRecord(b"", 0, 4, 0, 40, 10, 1, started_at=1_000_000, epoch_seconds=100, window=1000)
    journal.remember(PAY, msgspec.msgpack.encode(record))
    journal.remember("network", b"nowhere")
    journal.remember(FACT, b"1:0xab:7")
    journal.pay.take_leaves("judge", 1, [Accepted(7, own, 5, b"w" * 32, 60)], 100)  # type: ignore[arg-type]
    journal.files.add_file(b"a", b"p", 1, 60, 1.0, epoch=5, work=b"w" * 32)
    journal.files.add_file(b"b", b"p", 2, 7, 1.0, epoch=6, work=b"x" * 32)
    journal.close()
    return tmp_path


def flat(text: str) -> str:
    return " ".join(text.split())


def intended(state: Path) -> bytes | None:
    return StateFiles(state).fact(LEAVING)


def test_who_says_neither_is_told_what_waits_and_both_ways(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["leave", "--state-dir", str(state)]) == 2
    told = capsys.readouterr()
    assert "67 units (67 tokens) are in no table" in told.out and "30 units (30 tokens) are in the table" in told.out
    assert "the rest is in the table of 1970-01-12 14:15 UTC at the latest" in flat(told.out)
    assert "97 units" in told.err and "--when-paid" in told.err and "--now" in told.err and not intended(state)


def test_who_waits_for_its_pay_without_a_daemon_is_given_one_with_the_request_that_any_later_one_goes_on_with(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words: list[str] = []

    def start(given: list[str], directory: Path, _: object) -> None:
        words[:] = given
        assert directory == state and intended(state) == b"1:0xab:7", "it reads the request when it starts"
        raise CommandError("it cannot start", "a reason", "a remedy", 4)

    monkeypatch.setattr("cli.join.start_detached", start)
    for _ in range(2):  # twice is once
        assert main(["leave", "--when-paid", "--state-dir", str(state)]) == 4
        told = capsys.readouterr()
        assert "97 units (97 tokens) wait, the last of them from 1970-01-12 14:15 UTC on" in flat(told.out)
        assert "a reason" in told.err and intended(state) == b"1:0xab:7"
    assert words == ["join", "--role", "auto", "--network", "nowhere", "--pool", "7", *words[7:]]
    assert words[7:] == ["--state-dir", str(state), "--json"]
    assert main(["leave", "--stay", "--state-dir", str(state)]) == 0 and not intended(state)
    assert main(["leave", "--stay", "--state-dir", str(state)]) == 0
    assert "nobody asked" in capsys.readouterr().out
    assert main(["leave", "--stay", "--now", "--state-dir", str(state)]) == 2


def test_who_is_slashed_is_not_made_to_wait_for_pay_that_is_held(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.leave._on_chain", lambda *_: (4, 10, TOKEN, True))
    assert main(["leave", "--when-paid", "--state-dir", str(state)]) == 7
    assert "97 units (97 tokens) are held until then" in flat(capsys.readouterr().err) and not intended(state)


def test_a_silent_chain_keeps_the_request_and_says_how_to_go_on(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent:
        def __init__(self, *_: object, **__: object) -> None: ...

        async def connect(self) -> None:
            raise RpcUnreachable({"http://nowhere": "nobody listens"})

        def close(self) -> None: ...

    profile = SimpleNamespace(chain_id=1, name="nowhere")
    monkeypatch.setattr("cli.contract.frame.profile_of", lambda _: profile)
    monkeypatch.setattr("node.chain.client.ChainClient", Silent)
    monkeypatch.setattr("node.config.default_home", lambda: state / "home")
    _intend(state)
    assert main(["leave", "--now", "--state-dir", str(state)]) == 4
    told = capsys.readouterr()
    assert "67 units (67 tokens) are in no table" in told.out
    assert "leave --now" in told.err and "lease runs out by itself" in flat(told.err) and intended(state)


def test_a_line_of_the_table_is_read_from_what_a_daemon_kept_of_it_and_of_no_other(state: Path) -> None:
    """Of a node whose files it read; of others, of another root, or of a damaged fact, nothing is claimed."""
    own, other = address_bytes(KEY.address), b"\xff" * 20
    table = EarningsTable(7, 4, 60, (EarningsLine(own, 40), EarningsLine(other, 20)))
    head, files = table.files()
    journal = Journal(state / "journal.sqlite")
    journal.remember(TABLE, msgspec.msgpack.encode([encode_head(head), *files]))
    found = StateFiles(state).share(7, head.root(), 60, KEY.address)
    assert found is not None and found.units == 40 and verify(head.root(), EarningsLine(own, 40).leaf(), found.proof)
    assert StateFiles(state).share(7, b"r" * 32, 60, KEY.address) is None
    journal.remember(TABLE, msgspec.msgpack.encode([encode_head(head)]))
    assert StateFiles(state).share(7, head.root(), 60, KEY.address) is None, "the file of its line was never read"
    journal.remember(TABLE, b"nonsense")
    with pytest.raises(StateError, match="damaged"):
        StateFiles(state).share(7, head.root(), 60, KEY.address)
    journal.close()
