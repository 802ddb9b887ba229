"""`intellect-node doctor`: what is wrong with this node or its machine, and what to do about each thing."""

import io
import json
import os
import re
import tarfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from cli.errors import CONFIGURATION, CommandError
from cli.output import AsJson, clean, console, print_json, quiet_logs
from cli.places import complete_networks, state_dir_option

if TYPE_CHECKING:
    from node.config import NodeConfig
    from node.preflight.finding import CheckFinding
    from node.preflight.survey import Scope

LOGS = ("daemon.jsonl", "daemon.jsonl.1")
GONE = "[removed]"
_SECRETS = r"pass(?:word|wd|phrase)?|secret|private[_-]?key|api[_-]?key|mnemonic|credential|authorization|bearer"
_NAMED = rf"[\w.-]*(?:{_SECRETS})[\w.-]*"
_ASSIGNED = re.compile(rf"(?i)(\"?\b{_NAMED}\"?\s*[=:]\s*)(\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^\s,}}]+)")
_URL = re.compile(r"\b([a-z][a-z0-9+.-]*://)(?:[^\s/@\"'<>]*@)?([^\s/\"'<>?#\\]+)([^\s\"'<>\\]*)", re.I)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}")
_KEYSTORE = re.compile(r"(?i)\"(ciphertext|mac|salt|iv)\"\s*:\s*\"[0-9a-f]*\"")


def write_bundle(file: Path, config: "NodeConfig", findings: list[dict[str, Any]]) -> Path:
    """Write the report; raises CommandError if it cannot be written, or is there already."""
    parts = {"findings.json": _json(findings), "settings.json": _json(_settings(config)), **_status(config)}
    parts |= {f"logs/{name}": text for name, text in _logs(config.directory).items()}
    try:
        # x: never over a file that is there.
        with open(file, "xb") as out, tarfile.open(fileobj=out, mode="w:gz") as archive:
            for name, text in parts.items():
                # Every part, settings and status as well: a credential may stand in a URL that a log or an error
                # quotes.
                _add(archive, f"intellect-node-report/{name}", redacted(text))
        os.chmod(file, 0o600)
    except OSError as error:
        raise CommandError(
            f"the report {file} was not written", error.strerror or str(error), "give another file", CONFIGURATION
        ) from None
    return file


def redacted(text: str) -> str:
    """Without credentials, as far as they can be told by their names and places."""
    # patterns miss some secrets: so settings are left out by name, and files that hold keys are never opened
    # Of a URL scheme and host stay: keys stand in paths, in queries and before the host.
    text = _URL.sub(lambda found: found[1] + found[2] + ("/…" if found[3].strip("/") else ""), text)
    text = _BEARER.sub(lambda found: f"{found[1]} {GONE}", text)
    text = _ASSIGNED.sub(lambda found: found[1] + f'"{GONE}"', text)
    return _KEYSTORE.sub(lambda found: f'"{found[1]}": "{GONE}"', text)


def _settings(config: "NodeConfig") -> dict[str, Any]:
    plain = config.model_dump(mode="json")
    return {name: GONE if name == "password" and value else value for name, value in plain.items()}


def _status(config: "NodeConfig") -> dict[str, str]:
    import msgspec

    from cli import api

    try:
        status = api.get_status(api.socket_of(config.directory))
    except CommandError as error:
        return {"status.txt": f"{error.what}: {error.why}\n"}
    return {"status.json": _json(msgspec.to_builtins(status))}


def _logs(directory: Path) -> dict[str, str]:
    """The end of each log, from a whole line on."""
    found: dict[str, str] = {}
    log_bytes = 256 * 1024  # of the end of each log file
    for name in LOGS:
        try:
            with (directory / "logs" / name).open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(size - log_bytes, 0))
                text = log.read(log_bytes).decode(errors="replace")
        except OSError:
            continue
        # The first line is cut somewhere, perhaps within a secret that no pattern would know by half.
        found[name] = text if size <= log_bytes else text.partition("\n")[2]
    return found


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode()
    entry = tarfile.TarInfo(name)
    # Made here, not taken from files: an archive would otherwise tell this user's name.
    entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
    archive.addfile(entry, io.BytesIO(data))


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, default=str, ensure_ascii=False) + "\n"


EXAMPLES = (
    "Examples:  intellect-node doctor   |   intellect-node doctor --network base-sepolia --pool 7 --engine   |   "
    "intellect-node doctor --state-dir nodes/worker-1 --bundle report.tar.gz"
)
MARKS = {"ok": ("ok  ", "green"), "warning": ("warn", "yellow"), "failure": ("FAIL", "bold red")}


def command(
    network: Annotated[
        str | None, typer.Option(help="A network profile (TOML file), or its name.", autocompletion=complete_networks)
    ] = None,
    state_dir: Annotated[Path | None, state_dir_option("The node's state directory.")] = None,
    pool: Annotated[int | None, typer.Option(min=0, max=2**32 - 1, help="The pool on chain.")] = None,
    engine: Annotated[
        bool, typer.Option("--engine", help="Also fetch the run from the members and start the engine with it.")
    ] = False,
    bundle: Annotated[
        Path | None,
        typer.Option("--bundle", help="Write a report for an issue (tar.gz): no keys, passwords or RPC credentials."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look at everything that can fail: versions, settings, keys, GPU, chain, clock, stake, port, peers, disk, memory.

    Works with and without a running daemon, and changes nothing. Exit code 0 unless a check failed.
    """
    from cli.config import build_config
    from node.preflight.survey import Scope, exit_code

    config = build_config(network=network, state_dir=state_dir, pool=pool)
    scope = Scope(deep=True, visit=True, engine=engine)
    findings = look(config, scope, quiet=as_json)
    facts: dict[str, Any] = as_dict(findings)
    if bundle is not None:
        facts["bundle"] = str(write_bundle(bundle, config, facts["findings"]))
    if as_json:
        print_json(facts)
    else:
        _conclude(findings, facts.get("bundle"))
    raise typer.Exit(exit_code(findings))


def look(config: "NodeConfig", scope: "Scope", *, quiet: bool) -> "list[CheckFinding]":
    """Make a survey, and show each finding as it comes; last what a running daemon says."""
    from node.guest.machine import keep_to_cores
    from node.processes.launch import ENGINE, launch

    keep_to_cores(config.limits.cores)
    server = None
    # Three of its looks need an engine's libraries: they are imported once, beside our own. A machine that can start
    # nothing more is to be told so by these looks.
    with suppress(OSError):
        server = launch(ENGINE) if scope.engine else None
    import trio

    from node.preflight.survey import PreflightSurvey
    from node.processes.forkserver import ForkServer

    told = (lambda _: None) if quiet else show

    async def survey() -> "list[CheckFinding]":
        children = ForkServer(server)
        async with trio.open_nursery() as nursery:
            await nursery.start(children.run)
            found = await PreflightSurvey(config, scope, told, children).run()
            nursery.cancel_scope.cancel()
        return found

    with quiet_logs():
        found = trio.run(survey)
    # Last: what the daemon says is the answer to most of what the survey only suspects.
    of_daemon = ask_daemon(config)
    for finding in of_daemon:
        told(finding)
    return [*found, *of_daemon]


def ask_daemon(config: "NodeConfig") -> "list[CheckFinding]":
    """What the daemon of this state directory says of itself; nothing where none runs."""
    from cli import api
    from node.preflight.running import Running, check_running

    try:
        status = api.get_status(api.socket_of(config.directory))
    except CommandError:
        return []
    node, others = status.node, [one for one in status.swarm if one.address != status.node.address]
    phase, reach = node.phase, node.reach
    daemon = Running(
        phase=phase.name if phase else node.state,
        text=phase.text if phase else "",
        others=len(others),
        connected=sum(one.connected for one in others),
        tried=reach.tried if reach else 0,
        reached=reach.reached if reach else 0,
        way=reach.way if reach else "",
        seen=reach.seen if reach else "",
        relays=len(reach.relays) if reach else 0,
        punched=reach.punched if reach else 0,
        unpunched=reach.unpunched if reach else 0,
        offsets=tuple(one.clock_ahead_seconds for one in others if one.clock_ahead_seconds is not None),
        ahead=node.clock.ahead_seconds if node.clock else None,
        peers=node.clock.peers if node.clock else 0,
        troubles=[event.text for event in status.events if event.name == "trouble"][-3:],
    )
    return check_running(daemon)


def show(finding: "CheckFinding") -> None:
    """One finding; below it its remedy, each command on a line of its own."""
    out = console()
    mark, style = MARKS[finding.level]
    name = Text.assemble((mark, style), f"  {finding.name:<12}")
    out.print(Text.assemble(name, clean(finding.what, 600)), soft_wrap=True)
    commands = finding.data.get("commands") or []
    for line in commands or ([finding.remedy] if finding.remedy else []):
        out.print(Text(f"                  {'$ ' if commands else 'do: '}{clean(line, 600)}"), soft_wrap=True)


def as_dict(findings: "list[CheckFinding]") -> dict[str, Any]:
    """For programs."""
    import msgspec

    from node.preflight.finding import worst

    return {"level": worst(findings), "findings": [msgspec.to_builtins(finding) for finding in findings]}


def _conclude(findings: "list[CheckFinding]", bundle: str | None) -> None:
    count = {level: sum(finding.level == level for finding in findings) for level in MARKS}
    out = console()
    out.print(f"{count['ok']} ok, {count['warning']} to look at, {count['failure']} wrong")
    if bundle:
        out.print(f"report: {bundle} (look into it before you hand it on)", soft_wrap=True)
