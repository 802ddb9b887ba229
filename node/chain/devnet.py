"""A local chain with our contracts on it: starts anvil, deploys, keeps its state safe, brings it back.

`Devnet.run` is the service; it runs inside another program (the demo) or alone in the background
(`up`, which starts `python -m node.chain.devnet`). Everything lies in one directory.
"""

import argparse
import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from contextlib import closing
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import msgspec
import psutil
import structlog
import trio

from contracts.bindings import Addresses, Contracts
from contracts.deploy import DeployParams, deploy, send_now
from node.chain.anvil import find_anvil
from node.chain.endpoints import Endpoints, encoded, rpc
from node.chain.errors import ChainError, DevnetError, translate
from node.chain.faucet import FAUCET_CAP
from node.chain.http import client_for
from node.chain.profile import NetworkProfile, read_profile, write_profile
from node.chain.refusals import EndpointRefused
from node.looked import looked
from node.state.files import write_whole
from node.state.locks import FileLock
from protocol.errors import UNREADABLE
from protocol.identity import Address, NodeKey

if TYPE_CHECKING:  # it takes a second, and most that is said of a chain needs none
    from web3 import Web3

HOST = "127.0.0.1"
STOP_SECONDS = 10.0
log = structlog.get_logger()


class DevnetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """chain_id; block_time: seconds between empty blocks (a transaction gets a block at once); port: 0 for
    any free one, kept over restarts; window_seconds: a hint in the profile; deployment: what the contracts
    are born with.
    """

    chain_id: int = 31337
    block_time: int = 1
    port: int = 0
    window_seconds: int = 60
    deployment: DeployParams = DeployParams(unbonding_seconds=3600, appeal_seconds=60, min_window=1)


class DevnetStatus(msgspec.Struct, frozen=True):
    """running: the contracts are there and the chain answers; keeper_pid: the process that looks after anvil."""

    running: bool
    keeper_pid: int | None
    anvil_pid: int | None
    url: str | None
    block: int | None
    directory: str


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """devnet.json: what must be the same at the next start."""

    port: int
    chain_id: int
    contracts: Addresses | None = None
    deployed_block: int = 0


class _Pid(msgspec.Struct, frozen=True):
    """A process that we started, told apart from a later one with the same number by its start time."""

    pid: int
    created: float

    def process(self) -> psutil.Process | None:
        try:
            process = psutil.Process(self.pid)
            alive = abs(process.create_time() - self.created) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return None
        return process if alive else None


class _Papers:
    """What is written down in a devnet's directory: its record, and which processes are at work."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def running(self, name: str) -> psutil.Process | None:
        """The process that was written down by this name, if it is still there."""
        known = self.pid(name)
        return known.process() if known else None

    def pid(self, name: str) -> _Pid | None:
        try:
            return msgspec.json.decode((self._directory / f"{name}.pid").read_bytes(), type=_Pid)
        except (OSError, *UNREADABLE):
            return None

    def note(self, name: str, pid: int) -> None:
        try:
            created = psutil.Process(pid).create_time()
        except psutil.Error:
            return  # it is gone already; waiting for it will say so
        (self._directory / f"{name}.pid").write_bytes(msgspec.json.encode(_Pid(pid, created)))

    def forget(self) -> None:
        for name in ("keeper", "ready", "anvil"):
            (self._directory / f"{name}.pid").unlink(missing_ok=True)

    def record(self) -> _Record | None:
        """None of a new one. Raises DevnetError of one that is damaged."""
        try:
            return msgspec.json.decode((self._directory / "devnet.json").read_bytes(), type=_Record)
        except FileNotFoundError:
            return None
        except UNREADABLE as error:
            path = self._directory / "devnet.json"
            raise DevnetError(
                "the local chain's record is damaged", f"{path}: {error}", "remove its directory"
            ) from error

    def write(self, record: _Record) -> None:
        write_whole(self._directory / "devnet.json", msgspec.json.encode(record))


class Devnet:
    """One local chain in `directory`. cache: where anvil is installed to if it is not in PATH; publish: a
    second place for the profile, which exists only while the chain is up (home/networks/local.toml).
    """

    def __init__(
        self,
        directory: Path,
        *,
        cache: Path,
        options: DevnetOptions | None = None,
        publish: Path | None = None,
        restarts_per_minute: int = 6,
    ) -> None:
        self._restarts_per_minute = restarts_per_minute
        self.directory = directory.resolve()
        self.options = options or DevnetOptions()
        self._cache = cache
        self._publish = publish
        self._anvil: subprocess.Popen[bytes] | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._papers = _Papers(self.directory)
        self._state = StateCopies(self.directory / "state")
        self._restarts: deque[float] = deque(maxlen=restarts_per_minute)
        self._lock: FileLock | None = None

    @property
    def profile_path(self) -> Path:
        return self.directory / "network.toml"

    @property
    def anvil_pid(self) -> int | None:
        """The pid of the running anvil."""
        process = self._papers.running("anvil")
        return process.pid if process else None

    # ---- accounts

    def accounts(self) -> list[NodeKey]:
        """This devnet's own accounts, derived from its own random words; the first deployed the contracts, the
        second has tokens and is for whoever plays.
        """
        path = self.directory / "keys.json"
        if not path.exists():
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(path, json.dumps(_new_accounts()).encode(), mode=0o600, replace=False)
        return _read_accounts(path)

    # ---- as a service

    async def run(self, *, task_status: trio.TaskStatus[NetworkProfile] = trio.TASK_STATUS_IGNORED) -> None:
        """Bring the chain up, tell its profile, keep it up until cancelled, then stop it cleanly.

        Raises DevnetError if anvil is missing, the port is taken, another keeper runs, or anvil keeps dying.
        """
        binary = await trio.to_thread.run_sync(find_anvil, self._cache, abandon_on_cancel=True)
        try:
            task_status.started(await trio.to_thread.run_sync(self._start, binary))
            await self._keep(binary)
        finally:
            with trio.move_on_after(3 * STOP_SECONDS, shield=True):
                await trio.to_thread.run_sync(self._stop)

    async def _keep(self, binary: Path, *, watch_seconds: float = 0.25) -> None:
        saved, pause = -1, watch_seconds
        while True:
            await trio.sleep(pause)
            if self._anvil is None or self._anvil.poll() is not None:
                await trio.to_thread.run_sync(self._revive, binary)
                saved = -1
                continue
            started = time.monotonic()
            saved = await trio.to_thread.run_sync(self._save, saved)
            # A copy may take a tenth of the time at most: the state grows with the chain.
            pause = max(watch_seconds, 10 * (time.monotonic() - started))

    # ---- in the background

    def up(self, *, timeout: float = 120.0) -> NetworkProfile:
        """Start in the background unless it runs already; returns when the chain answers. Blocking."""
        if self._papers.running("keeper") is not None:
            return self._wait_up(None, timeout)
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._child is not None:
            self._child.poll()  # an earlier keeper that was killed: reap it
        with (self.directory / "keeper.log").open("ab") as output:
            self._child = subprocess.Popen(
                self.keeper_command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=Path(__file__).resolve().parents[2],
            )
        return self._wait_up(self._child, timeout)

    def keeper_command(self) -> list[str]:
        """The program that keeps this chain up while it runs."""
        command = [sys.executable, "-m", "node.chain.devnet", str(self.directory), "--cache", str(self._cache)]
        command += ["--options", _encode(self.options)]
        return [*command, "--publish", str(self._publish)] if self._publish else command

    def down(self) -> bool:
        """Stop the background chain and whatever is left of it; returns whether anything ran. Blocking."""
        keeper, anvil = self._papers.running("keeper"), self._papers.running("anvil")
        if keeper is not None:
            _end(keeper, 3 * STOP_SECONDS)
        # Looked for again: the keeper may have ended it, or begun another meanwhile.
        if (left := self._papers.running("anvil")) is not None:
            _end(left, STOP_SECONDS)
        if self._child is not None:
            self._child.kill()  # it had ended, or had not come far enough to leave its pid
            self._child.wait(STOP_SECONDS)
        self._forget()
        return keeper is not None or anvil is not None

    def status(self) -> DevnetStatus:
        """Whether it runs, seen from any process. Blocking, a second at most."""
        keeper, record = self._papers.running("keeper"), self._papers.record()
        url = f"http://{HOST}:{record.port}" if record else None
        ready = self._papers.pid("ready")
        up = keeper is not None and ready is not None and ready.pid == keeper.pid and self.anvil_pid is not None
        block = _block_number(url) if url and up else None
        return DevnetStatus(
            running=block is not None,
            keeper_pid=keeper.pid if keeper else None,
            anvil_pid=self.anvil_pid,
            url=url,
            block=block,
            directory=str(self.directory),
        )

    def _wait_up(self, keeper: subprocess.Popen[bytes] | None, timeout: float) -> NetworkProfile:
        def is_up() -> bool:
            if keeper is not None and keeper.poll() is not None:
                raise self._failed_to_come_up()
            return self.status().running

        if looked(is_up, 0.1, timeout):
            return read_profile(self.profile_path)
        where = self.directory / "keeper.log"
        raise DevnetError("the local chain does not come up", f"no answer within {timeout:.0f} s", f"look into {where}")

    def _failed_to_come_up(self) -> DevnetError:
        path = self.directory / "failure.json"
        try:
            return DevnetError(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            where = self.directory / "keeper.log"
            return DevnetError("the local chain does not come up", "its keeper ended", f"look into {where}")

    # ---- inside, all blocking

    def _start(self, binary: Path) -> NetworkProfile:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.directory / "failure.json").unlink(missing_ok=True)
        self._acquire()
        self._papers.note("keeper", os.getpid())
        self._end_orphan()
        record = self._papers.record() or _Record(self.options.port or _free_port(), self.options.chain_id)
        if self.options.port and record.port != self.options.port:
            record = msgspec.structs.replace(record, port=self.options.port)
        self._papers.write(record)
        self._launch(binary, record)
        self._deploy_once(record)
        self._save(-1)
        profile = self._make_profile()
        write_profile(self.profile_path, profile)
        if self._publish:
            write_profile(self._publish, profile)
        self._papers.note("ready", os.getpid())
        log.info("devnet.up", url=profile.rpc_urls[0], anvil=self.anvil_pid, directory=str(self.directory))
        return profile

    def _launch(self, binary: Path, record: _Record) -> None:
        _require_free(record.port)
        command = [str(binary), "--host", HOST, "--port", str(record.port), "--chain-id", str(record.chain_id)]
        # No accounts of anvil's own: their keys are known to everybody.
        command += ["--block-time", str(self.options.block_time), "--mixed-mining", "--accounts", "0"]
        command += ["--silent", "--no-cors", "--cache-path", str(self.directory / "cache")]
        state = self._state.newest_valid()
        if state is not None:
            command += ["--load-state", str(state)]
        with (self.directory / "anvil.log").open("ab") as output:
            self._anvil = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        self._papers.note("anvil", self._anvil.pid)
        self._wait_ready(record)

    def _wait_ready(self, record: _Record) -> None:
        url = f"http://{HOST}:{record.port}"
        answers = lambda: _block_number(url) is not None
        ended = lambda: self._anvil is None or self._anvil.poll() is not None
        if looked(lambda: answers() or ended(), 0.03, 20.0) and not ended():
            return
        tail = (self.directory / "anvil.log").read_bytes()[-400:].decode(errors="replace").strip()
        raise DevnetError("the local chain does not start", tail or "anvil does not answer", "look into anvil.log")

    def _revive(self, binary: Path) -> None:
        now = time.monotonic()
        if len(self._restarts) == self._restarts_per_minute and now - self._restarts[0] < 60:
            raise DevnetError("the local chain keeps dying", "anvil ended again and again", "look into anvil.log")
        self._restarts.append(now)
        record = self._papers.record()
        if record is None:
            raise DevnetError(
                "the local chain cannot come back", "devnet.json is gone", "run: intellect-node devnet up"
            )
        log.warning("devnet.revived", port=record.port)
        self._launch(binary, record)
        self._deploy_once(record)

    def _deploy_once(self, record: _Record) -> None:
        """Deploy unless the contracts are there; after a loss of all state they get the same addresses again."""
        url = f"http://{HOST}:{record.port}"
        if record.contracts is not None:
            if _has_code(url, record.chain_id, record.contracts.swarm):
                return
            log.warning("devnet.state_lost", directory=str(self.directory))
        # Not before: it takes a second, and a chain that has its contracts needs none.
        from web3 import Web3

        from node.chain.rpc import FallbackProvider

        accounts = self.accounts()
        rich = 10**24
        with client_for(url, timeout=8.0) as http:
            for account in accounts:
                rpc(http, url, "anvil_setBalance", account.address, hex(rich))
        with closing(FallbackProvider([url], record.chain_id)) as provider:
            web3 = Web3(provider)
            done = deploy(web3, accounts[0], self.options.deployment)
            play_money(web3, accounts[0], accounts[1], done.addresses)
        self._papers.write(msgspec.structs.replace(record, contracts=done.addresses, deployed_block=done.block))

    def _make_profile(self) -> NetworkProfile:
        record = self._papers.record()
        if record is None or record.contracts is None:
            raise DevnetError("the local chain has no contracts", "they were not deployed", "start it anew")
        return NetworkProfile(
            name="local",
            chain_id=record.chain_id,
            rpc_urls=(f"http://{HOST}:{record.port}",),
            contracts=record.contracts,
            window_seconds=self.options.window_seconds,
            deployed_block=record.deployed_block,
        )

    def _save(self, saved: int) -> int:
        """Copy the state if there are new blocks since `saved`; returns the block that is safe now."""
        record = self._papers.record()
        if record is None:
            return saved
        url = f"http://{HOST}:{record.port}"
        try:
            with client_for(url, timeout=30.0) as http:
                head = int(rpc(http, url, "eth_blockNumber"), 16)
                if head == saved:
                    return saved
                self._state.save(rpc(http, url, "anvil_dumpState"))
        except (httpx.HTTPError, ValueError, OSError) as error:
            log.warning("devnet.not_saved", why=str(error)[:200])
            return saved
        return head

    def _stop(self) -> None:
        """Only what this object started; a second keeper that failed to start leaves the first alone."""
        if self._anvil is not None and self._anvil.poll() is None:
            self._save(-1)
            self._anvil.terminate()
            try:
                self._anvil.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._anvil.kill()
                self._anvil.wait(STOP_SECONDS)
        if self._lock is not None:
            self._forget()
            self._lock.release()
            self._lock = None
            log.info("devnet.down", directory=str(self.directory))

    def _forget(self) -> None:
        self._papers.forget()
        if self._publish:
            self._publish.unlink(missing_ok=True)

    def _acquire(self) -> None:
        lock = FileLock(self.directory / "lock")
        if not lock.acquire():
            raise DevnetError(
                "this local chain runs already",
                f"process {lock.holder} keeps {self.directory}",
                "use it, or stop it first",
            )
        self._lock = lock

    def _end_orphan(self) -> None:
        """An anvil whose keeper was killed: save what it knows, then end it."""
        process, record = self._papers.running("anvil"), self._papers.record()
        if process is None or record is None:
            return
        log.warning("devnet.orphan_ended", pid=process.pid)
        self._save(-1)
        _end(process, STOP_SECONDS)


def play_money(web3: "Web3", payer: NodeKey, player: NodeKey, contracts: Addresses) -> None:
    """Tokens for the account that is for whoever plays."""
    send_now(web3, payer, Contracts(web3, contracts).mint(player.address, FAUCET_CAP))


def play_account(directory: Path) -> NodeKey | None:
    """The account of a devnet in `directory` that has coin and tokens to play with; None if there is no devnet."""
    path = directory / "keys.json"
    return _read_accounts(path)[1] if path.is_file() else None


def _read_accounts(path: Path) -> list[NodeKey]:
    return [NodeKey(bytes.fromhex(entry["key"])) for entry in json.loads(path.read_text())["accounts"]]


def _new_accounts() -> dict[str, object]:
    from eth_account import Account

    Account.enable_unaudited_hdwallet_features()
    _, words = Account.create_with_mnemonic()
    paths = [f"m/44'/60'/0'/0/{index}" for index in range(4)]
    keys = [Account.from_mnemonic(words, account_path=path) for path in paths]
    return {"mnemonic": words, "accounts": [{"address": key.address, "key": bytes(key.key).hex()} for key in keys]}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise DevnetError(
                f"port {port} is taken",
                error.strerror or str(error),
                "stop what uses it, or choose another with --port",
            ) from error


def _block_number(url: str) -> int | None:
    try:
        with client_for(url, timeout=2.0) as http:
            return int(rpc(http, url, "eth_blockNumber"), 16)
    except (httpx.HTTPError, ValueError):
        return None


def _has_code(url: str, chain_id: int, address: Address) -> bool:
    """Raises ChainError."""
    try:
        with closing(Endpoints([url], chain_id)) as endpoints:
            answer = endpoints.request("eth_getCode", encoded("eth_getCode", [address, "latest"]))
    except EndpointRefused as refusal:
        raise translate(refusal, "look for the contracts") from refusal
    return answer.get("result", "0x") != "0x"


def _end(process: psutil.Process, timeout: float) -> None:
    try:
        process.terminate()
        process.wait(timeout)
    except psutil.TimeoutExpired:
        process.kill()
        process.wait(STOP_SECONDS)
    except psutil.NoSuchProcess:
        return


def _encode(options: DevnetOptions) -> str:
    plain = msgspec.to_builtins(options)
    plain["deployment"] = {key: str(v) if isinstance(v, int) else v for key, v in plain["deployment"].items()}
    return json.dumps(plain)


def _decode(text: str) -> DevnetOptions:
    return msgspec.convert(json.loads(text), DevnetOptions, strict=False)


async def _main(devnet: Devnet) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            await nursery.start(devnet.run)
            async for _ in signals:
                nursery.cancel_scope.cancel()
                return


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m node.chain.devnet", description="Keeps a local chain up.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--options", type=_decode, default=DevnetOptions())
    parser.add_argument("--publish", type=Path)
    given = parser.parse_args()
    devnet = Devnet(given.directory, cache=given.cache, options=given.options, publish=given.publish)
    try:
        trio.run(partial(_main, devnet))
    except (ChainError, BaseExceptionGroup) as raised:
        error = _innermost(raised)
        if not isinstance(error, ChainError):
            raise
        failure = {"what": error.what, "why": error.why, "remedy": error.remedy}
        (given.directory / "failure.json").write_text(json.dumps(failure))
        print(error, file=sys.stderr)
        return 1
    return 0


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


# Copies of a local chain's state: written whole, kept in turn, checked before they are loaded

MAX_STATE = 2 * 1024**3


class StateCopies:
    """Numbered files in one folder, the highest the newest. Blocking."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _copies(self) -> list[Path]:
        return sorted(self._folder.glob("state-*.json"), reverse=True)

    def save(self, dump: str) -> Path:
        """dump: what anvil_dumpState returns, 0x and gzipped JSON in hex. Raises ValueError or OSError."""
        try:
            with gzip.open(BytesIO(bytes.fromhex(dump.removeprefix("0x")))) as file:
                data = file.read(MAX_STATE + 1)
            if len(data) > MAX_STATE:
                raise OSError(f"it has more than {MAX_STATE} bytes")
        except (OSError, EOFError) as error:
            raise ValueError(f"not a state: {error}") from error
        newest = self._copies()
        number = int(newest[0].stem.removeprefix("state-")) + 1 if newest else 1
        target = self._folder / f"state-{number:09d}.json"
        write_whole(target, data)
        # Three copies stay; what a killed keeper left goes, too.
        for old in [*self._copies()[3:], *self._folder.glob(".state-*")]:
            old.unlink(missing_ok=True)
        return target

    def newest_valid(self) -> Path | None:
        """The newest copy that can be loaded; damaged ones are set aside."""
        for path in self._copies():
            why = _damage(path)
            if why is None:
                return path
            log.warning("devnet.state_damaged", path=str(path), why=why)
            path.rename(path.with_suffix(".damaged"))
        return None


def _damage(path: Path) -> str | None:
    if path.stat().st_size > MAX_STATE:
        return "too big"
    try:
        state = json.loads(path.read_bytes())
    except ValueError as error:
        return str(error)[:100]
    missing = {"block", "accounts", "blocks", "best_block_number"} - set(state if isinstance(state, dict) else ())
    return f"without {', '.join(sorted(missing))}" if missing else None


if __name__ == "__main__":
    sys.exit(main())
