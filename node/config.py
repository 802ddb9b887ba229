"""One typed tree of settings. Precedence: flag, environment (INTELLECT_NODE_*), config file, default.

Knows where things lie on disk; opens none of them.
"""

import hashlib
import os
import shlex
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal, get_origin

from pydantic import Field, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from node.errors import ConfigError
from node.guest.settings import GuestSettings, read_guest
from node.places import OURS, default_home
from node.units import TOKEN

Role = Literal["trainer", "worker", "validator", "auto"]
RelayOffer = Literal["auto", "off", "on"]
LanChoice = Literal["auto", "off", "on"]
EngineName = Literal["auto", "torch", "vllm"]
HubUse = Literal["late", "first", "never"]
ROLES: tuple[Role, ...] = ("trainer", "worker", "validator")
DISK_FIXED = 448 * 1024**2
"""Bytes of a state directory beside blobs: logs, journal, what was read of the chain."""
MAX_SOCKET_PATH = 100
"""Bytes; the systems differ, the least is 103."""


class ListsFromEnvironment(EnvSettingsSource):
    """Lists in variables as flags and other programs write them, comma between, or as JSON."""

    def prepare_field_value(self, field_name: str, field: Any, value: Any, value_is_complex: bool) -> Any:
        if isinstance(value, str) and get_origin(field.annotation) is tuple and not value.lstrip().startswith("["):
            return [part.strip() for part in value.split(",") if part.strip()]
        try:
            return super().prepare_field_value(field_name, field, value, value_is_complex)
        except ValueError as error:
            form = '["a", "b"], or a,b' if get_origin(field.annotation) is tuple else '{"name": "value"}'
            raise ConfigError(
                f"the variable {OURS}{field_name.upper()} cannot be read",
                f"its value is not of the form {form}",
                "correct the variable, or write the setting into config.toml",
            ) from error


class NodeConfig(BaseSettings):
    """Everything one daemon needs to know. Sizes in bytes, times in seconds, stake in wei."""

    # extra="forbid": a misspelt setting would otherwise be a default that nobody notices.
    model_config = SettingsConfigDict(env_prefix="INTELLECT_NODE_", extra="forbid", frozen=True)

    role: Role = "auto"
    network: str = "local"
    home: Path = Field(default_factory=default_home)
    state_dir: Path | None = None
    pool: int | None = None
    run_file: Path | None = None
    run_sets: tuple[str, ...] = ()
    """NAME=VALUE words that count as if they stood in the run file"""
    listen: str | None = None
    """multiaddrs (comma between); None: what fits the network (node.preflight.reach)"""
    announce: str | None = None
    """the multiaddrs that others shall dial, where they are not those listened on (comma between)"""
    lan: LanChoice = "auto"
    """whether members are dialled at private addresses, and looked for in the local network; auto: where the chain is
    in it too"""
    # repr=False: settings are logged and shown in tracebacks.
    password: str | None = Field(default=None, repr=False)
    password_file: Path | None = None
    provider_key_file: Path | None = None
    gateway: str | None = None
    """HOST:PORT on which blobs are served by HTTP too; off by default"""
    gateway_tls: bool = True
    """with a certificate of its own; SHARDCAST clients need plain HTTP"""
    gateway_announce: str | None = None
    """HOST:PORT that others shall use, where it is not the one listened on"""
    http_sources: tuple[str, ...] = ()
    """URLs (https://HOST:PORT#sha256=...) that are asked for blobs before the swarm is"""
    hub: HubUse = "late"
    """when a file of a run that names its source is asked of the hub, which learns this node's address: late (a minute
    after the peers gave nothing more), first, or never"""
    engine: EngineName = "auto"
    """what computes: auto takes vLLM on a GPU, where it is installed and the run permits it, else torch"""
    engine_command: str | None = None
    """another program that speaks the engine protocol; default: node.inference.process of this program"""
    wait: bool = True
    """where the stake or gas of this node is missing: wait for it; else end with the commands that mend it"""
    preflight: bool = True
    """look at everything that can fail before joining, and refuse to join if it would"""
    vouch: bool = False
    """the owner's word that no other daemon has this node's key and that its journal is the newest, where the node is
    in doubt (after a reboot, a move or a restored backup) and nobody can tell it"""
    auto_setup: bool = True
    """on a local devnet: fund, stake and register this node when it is not yet"""
    # Of a devnet's node alone, which stakes by itself; elsewhere the owner says how much.
    stake: int = 100 * TOKEN
    units: int = 1
    store_quota: int = 20 * 1024**3
    upload_limit: float = Field(default=0, ge=0)
    """bytes per second of blobs that others are given; 0: no limit"""
    download_limit: float = Field(default=0, ge=0)
    """bytes per second of blobs that are fetched; 0: no limit"""
    upload_slots: int = Field(default=4, ge=1, le=64)
    """answers with pieces that are sent at once; the others wait their turn"""
    bootnodes: tuple[str, ...] = ()
    """multiaddrs ending in /p2p/PEER that are dialled whatever the chain says, besides the network profile's"""
    relay: RelayOffer = "auto"
    """whether this node carries connections between members who cannot; auto: while it can be dialled"""
    relay_limit: float = Field(default=32 * 1024**2, gt=0)
    """bytes per second that it carries in all, at most half of that for one member"""
    chain_poll: float | None = Field(default=None, gt=0)
    """seconds between two looks at the chain's newest block: 6, and 1 on a devnet of this machine"""
    page: str | None = None
    """HOST:PORT where the page is served by HTTP, to whoever can reach it; off by default"""
    page_hosts: tuple[str, ...] = ()
    """host names by which browsers may ask for the page, beside localhost and IP addresses"""
    metrics_address: str | None = None
    """HOST:PORT where /metrics is served over TCP too (no authentication); default: the unix socket only"""
    metrics_log: str = ""
    """where a trainer sends its metrics besides metrics.jsonl: wandb, trackio, tensorboard (comma between)"""
    heartbeat: float = 2.0
    trainer: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """[trainer] in config.toml: world_size, dtype, micro_batch_tokens ... (node.training.settings.TrainerSettings)"""
    guest: dict[str, Any] = Field(default_factory=dict)
    """[guest] in config.toml: hours, only_idle, caps of cores, GPU, disk and upload (node.guest.settings)"""
    show_logs: bool = True
    """the log's lines on standard error too; the files in the state directory are written in any case"""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("guest")
    @classmethod
    def _usable(cls, values: dict[str, Any]) -> dict[str, Any]:
        try:
            read_guest(values)
        except ConfigError as error:  # pydantic names the setting and its place
            raise ValueError(error.why) from None
        return values

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        file = default_home() / "config.toml"
        # The order is the precedence. Neither .env files nor secret directories are read: a program that is started in
        # a stranger's checkout must not take its settings.
        return init_settings, ListsFromEnvironment(settings_cls), TomlConfigSettingsSource(settings_cls, toml_file=file)

    @property
    def limits(self) -> GuestSettings:
        """What the owner lets this program take, and when."""
        return read_guest(self.guest)

    @property
    def quota(self) -> int:
        """Bytes of the blob store: of a capped disk seven tenths of what logs and journal leave, since an image that is
        built beside it is as large as three of the seven."""
        most = self.limits.disk
        return min(self.store_quota, max(most - DISK_FIXED, 0) * 7 // 10) if most else self.store_quota

    @property
    def upload_rate(self) -> float:
        """Bytes per second of blobs for others, 0: no limit."""
        return min(filter(None, (self.upload_limit, float(self.limits.upload))), default=0.0)

    @property
    def relay_offer(self) -> RelayOffer:
        """Who limits what goes up carries nobody, unless told to."""
        return "off" if self.limits.upload and self.relay == "auto" else self.relay

    @staticmethod
    def engine_program() -> list[str]:
        """Our own."""
        return [sys.executable, "-m", "node.inference.process"]

    @property
    def engine_argv(self) -> list[str]:
        """The program of the engine child."""
        program = shlex.split(self.engine_command) if self.engine_command else self.engine_program()
        return [*program, *self.engine_options]

    @property
    def engine_options(self) -> list[str]:
        """What is said to our own engine beyond its program."""
        named = [] if self.engine == "auto" else ["--engine", self.engine]
        most = self.limits.gpu_memory
        return [*named, "--most-gib", f"{most / 2**30:.4f}"] if most else named

    @property
    def directory(self) -> Path:
        """The state directory of this node."""
        if self.state_dir is not None:
            return self.state_dir
        return self.home / "nodes" / Path(self.network).stem / self.role


def program_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("intellect-node")
    # A checkout that was never installed.
    except PackageNotFoundError:
        return "0+source"


def api_socket_path(state_dir: Path) -> Path:
    """Where the daemon of `state_dir` listens for the command line."""
    # A hash, as the path itself may be too long: client and daemon come to the same without asking each other.
    return runtime_socket(hashlib.sha256(os.fsencode(state_dir.resolve())).hexdigest()[:20])


def api_socket_of(state_dir: Path) -> Path:
    """The socket of the daemon with this state directory: where this terminal's daemons have it, else where those of
    the machine's service manager do, which know no runtime directory."""
    usual = api_socket_path(state_dir)
    elsewhere = Path(tempfile.gettempdir()) / usual.parent.name / usual.name
    return elsewhere if not usual.exists() and _is_ours(elsewhere) else usual


def _is_ours(path: Path) -> bool:
    """Whether it lies in a directory that nobody else could have made: others may write beside it."""
    try:
        return path.exists() and path.parent.stat().st_uid == os.getuid()
    except OSError:
        return False


def runtime_socket(name: str) -> Path:
    """A socket of this user's programs.

    Unix socket paths are limited to about 100 bytes, so it lies in the runtime directory; in /tmp where that
    directory's own path is too long.
    """
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    place = f"intellect-node-{os.getuid()}/{name}.sock"
    path = runtime / place
    return path if len(os.fsencode(path)) <= MAX_SOCKET_PATH else Path("/tmp") / place  # noqa: S108 - mode 0700


def is_listened_on(path: Path) -> bool:
    """Whether a living process listens on a socket file (a killed daemon leaves a dead one). Never waits."""
    with socket.socket(socket.AF_UNIX) as probe:
        # Whoever takes no callers must hold nobody up: not a command, and not the event loop of another daemon.
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return True  # its queue is full: it lives, however badly
        except OSError:
            return False
        return True
