"""`contract pool plan FILE`: a deployment, a pool and its run in one file, checked whole, as the commands for it.

Sends nothing. The names in the file are those of the commands' options, so that a section reads like the command that
comes of it. Every mistake is found at once: in values, between the times, between who may do what, in the run.
"""

import os
import shlex
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from cli.contract.frame import pool_app, profile_of, read
from cli.contract.values import MAX_TOTAL, MAX_UNITS, address, address_of, seconds, usual_quorum, wei, word
from cli.errors import USAGE, CommandError
from cli.keyring import NODE_KEY
from cli.output import AsJson, console, duration, ether, print_facts, print_json
from cli.run import tell_findings
from node.errors import Mistake, Mistakes
from protocol.errors import IntellectError
from protocol.upkeep import LEASE_SECONDS

if TYPE_CHECKING:
    from cli.contract.public import RoadPart
    from node.chain.profile import NetworkProfile

MAX_BYTES = 256 * 1024
# As the contracts have them: a transaction that breaks one would only revert.
MAX_URI_BYTES, MAX_BOOTNODES_BYTES, MAX_VALIDATORS = 256, 1024, 16

Parser = Callable[[Any], Any]


def _number(least: int, most: int) -> Parser:
    def parse(value: Any) -> int:
        # To Python true is 1, and a switch in the place of a number is a mistake.
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise CommandError(f"{value!r} is no number that fits", f"it must be {least:,} to {most:,}", "change it")
        return value

    return parse


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise CommandError(f"{value!r} is no text", "it must be text in quotes", "put it in quotes")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise CommandError(f"{value!r} is neither true nor false", "it is a switch", "give true or false")
    return value


def _of_text(parse: Callable[[str], Any]) -> Parser:
    """Amounts and times may stand with or without quotes."""
    return lambda value: parse(str(value) if isinstance(value, (int, float, str)) else _text(value))


def _list(parse: Parser) -> Parser:
    def each(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise CommandError(f"{value!r} is no list", "there may be several", "put it in brackets: [..]")
        return [parse(one) for one in value]

    return each


_TOKENS, _TIME, _ADDRESS = _of_text(wei), _of_text(seconds), lambda value: address(_text(value))
_FIELDS: dict[str, dict[str, tuple[Parser, Any]]] = {
    "deploy": {
        "key": (_text, None),
        "token": (_ADDRESS, None),
        "treasury": (_ADDRESS, None),
        "arbiter": (_ADDRESS, None),
        "unbonding": (_TIME, 7 * 86_400),
        "appeal": (_TIME, 86_400),
        "base_stake": (_TOKENS, 0),
        "stake_per_unit": (_TOKENS, 100 * 10**18),
        "min_window": (_TIME, 3600),
        "burn_bps": (_number(0, 10_000), 5000),
        "bond_bps": (_number(0, 10_000), 2500),
        "min_bond": (_TOKENS, 10**18),
    },
    "pool": {
        "key": (_text, None),
        "run": (_text, None),
        "make": (_text, None),
        "run_root": (lambda value: word(_text(value)), None),
        "trainer": (_ADDRESS, None),
        "trainer_state": (_text, None),
        "validator": (_list(_ADDRESS), []),
        "validator_state": (_list(_text), []),
        "threshold": (_number(1, MAX_VALIDATORS), None),
        "reward": (_TOKENS, 10**18),
        "fund": (_TOKENS, 1000 * 10**18),
        "slash": (_TOKENS, 100 * 10**18),
        "epoch": (_TIME, None),
        "window": (_TIME, None),
        "delay": (_TIME, None),
        "guardian": (_ADDRESS, None),
        "lease": (_TIME, LEASE_SECONDS),
        "max_units": (_number(1, MAX_UNITS), 10**8),
        "units_per_epoch": (_number(1, MAX_TOTAL), 10**9),
        "invited": (_flag, False),
        "attested": (_flag, False),
        "bootnode": (_list(_text), []),
        "uri": (_text, ""),
    },
    "provider": {"key": (_text, None), "nodes": (_list(_text), []), "units": (_number(1, MAX_UNITS), 1)},
    "public": {
        "members": (_number(1, 10_000), 20),
        "days": (_number(1, 3650), 30),
        "requests": (_number(1, 10**12), None),
    },
}
"""Section -> option -> (how it is read, its default): as the commands `deploy` and `pool create` have them."""
_PATHS = ("run", "trainer_state", "validator_state")
_OURS = ("key", "make")
"""Settings that are no options of the command."""


class PlanFile:
    """A plan file, as it is read and checked. Amounts in wei, times in seconds."""

    def __init__(self, file: Path) -> None:
        self.file, self.found = file, Mistakes()
        self.warnings: list[str] = []
        self.raw: dict[str, Any] = _read(file)
        for name in self.raw.keys() - {"network", *_FIELDS}:
            known = "network, [deploy], [pool], [[provider]] and [public] are known"
            self.wrong(name, "there is no such section", known)
        network = self.raw.get("network", "local")
        self.network = network if isinstance(network, str) else "local"
        self.profile: NetworkProfile | None = None
        self.up = self.unmade = True  # whether the local chain, and the run's files, are yet to be made
        self.deploys = self.known = "deploy" in self.raw  # known: somebody has said what the contracts are born with
        self.deploy = self._section("deploy", self.raw.get("deploy", {}))
        if "pool" not in self.raw:
            self.wrong("[pool]", "it is missing", "say which pool is opened: examples/pool.toml has every setting")
        self.pool = self._section("pool", self.raw.get("pool", {}))
        providers = self.raw.get("provider", [])
        if not isinstance(providers, list):
            self.wrong("provider", "there may be several", "write [[provider]], in two brackets")
            providers = []
        self.providers = [self._section("provider", one, f"provider {n}") for n, one in enumerate(providers, 1)]
        self.public = self._section("public", self.raw.get("public", {}))
        self._network()
        for look in (self._times, self._amounts, self._people, self._signers, self._run):
            look()

    # reading

    def wrong(self, place: str, what: str, remedy: str) -> None:
        self.found.add(Mistake(f"{self.file.name}, {place}", what, remedy))

    def _try(self, place: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except IntellectError as error:
            self.found.take(error, f"{self.file.name}, {place}")
            return None

    def _section(self, name: str, given: Any, place: str | None = None) -> dict[str, Any]:
        place, fields = place or name, _FIELDS[name]
        if not isinstance(given, Mapping):
            self.wrong(place, "it is no table", f"write [{place}] on a line of its own")
            given = {}
        for unknown in given.keys() - fields.keys():
            self.wrong(f"{place}.{unknown}", "there is no such setting", f"known are: {', '.join(fields)}")
        values: dict[str, Any] = {}
        for option, (parse, default) in fields.items():
            values[option] = default
            if option in given:
                # One mistake must not hide those after it: a plan is told all of them at once.
                read = self._try(f"{place}.{option}", lambda: parse(given[option]))  # noqa: B023 - called at once
                values[option] = default if read is None else read
        return values

    def path(self, text: str) -> str:
        """As the plan means it: beside the plan's file."""
        # Beside the file, wherever the command is called from; the printed commands stand with these paths.
        return os.path.normpath(self.file.parent / text)

    def _network(self) -> None:
        """What the network says stands for what the plan leaves out."""
        from node.chain.devnet import DevnetOptions
        from node.chain.profile import LOCAL, local_profile_path
        from node.config import default_home

        self.up = self.network == LOCAL and not self.deploys and not local_profile_path(default_home()).is_file()
        profile = self._try("network", lambda: profile_of(self.network, deployed=not self.deploys and not self.up))
        self.profile = profile
        defaults = {"epoch": 60 if self.network == "local" else 3600}
        defaults["window"] = profile.window_seconds if profile else 3600
        self.pool |= {name: value for name, value in defaults.items() if self.pool[name] is None}
        if profile is not None and self.deploys and profile.deployed:
            self.wrong("[deploy]", f"the contracts are on {profile.name} already", "leave the section out")
        elif self.up:
            born, self.known = msgspec.structs.asdict(DevnetOptions().deployment), True
            self.deploy |= {name.removesuffix("_seconds"): value for name, value in born.items()}
        elif profile is not None and not self.deploys:
            self._try("network", self._ask_chain)

    def _ask_chain(self) -> None:
        """What the contracts were born with takes the place of [deploy]."""
        from cli.contract.look import read_parameters

        born = read(self.network, lambda chain: chain.ask("read the parameters", read_parameters))
        names = {"unbonding_period": "unbonding", "appeal_seconds": "appeal"}
        self.deploy |= {names.get(name, name): value for name, value in born.items()}
        self.known = True

    # checking

    def _times(self) -> None:
        deploy, pool = self.deploy, self.pool
        window, epoch, lease, unbonding = pool["window"], pool["epoch"], pool["lease"], deploy["unbonding"]
        longest = 2**24 - 1  # seconds that a pool's times may have: 194 days
        for place, length in (("window", window), ("epoch", epoch), ("lease", lease)):
            if not 0 < length <= longest:
                self.wrong(f"pool.{place}", f"{length:,} s", f"it must be 1 s to {longest:,} s (194 days)")
        if lease < epoch:
            self.wrong("pool.lease", f"{duration(lease)} is less than an epoch, {duration(epoch)}", "lengthen it")
        for place in ("unbonding", "appeal"):
            if deploy[place] == 0:
                self.wrong(f"deploy.{place}", "no time at all", "give e.g. 24h")
        if unbonding < 2 * deploy["appeal"]:
            both = f"{duration(unbonding)} are less than two appeals of {duration(deploy['appeal'])}"
            why = "a case's stake would be gone before it is decided"
            self.wrong("deploy.unbonding", f"{both}: {why}", "lengthen it, or shorten deploy.appeal")
        if self.known and window < deploy["min_window"]:
            least = duration(deploy["min_window"])
            self.wrong("pool.window", f"{duration(window)}; the network's least is {least}", f"at least {least}")
        # The contract asks the same of a pool when it is opened.
        if self.known and window + epoch > unbonding:
            both = f"{duration(window)} and an epoch of {duration(epoch)}"
            what = f"{both} are longer than the unbonding, {duration(unbonding)}"
            why = "a stake would be gone before its work can be refused"
            self.wrong("pool.window", f"{what}: {why}", "shorten window and epoch, or lengthen deploy.unbonding")

    def _amounts(self) -> None:
        deploy, pool = self.deploy, self.pool
        most = deploy["stake_per_unit"]
        if self.known and pool["slash"] > most:
            why = f"{ether(pool['slash'])} tokens a unit; a slash takes at most {ether(most)}, what one unit bonds"
            self.wrong("pool.slash", why, "lower it, or raise deploy.stake_per_unit")
        if most == 0:
            self.wrong("deploy.stake_per_unit", "nothing could ever be slashed", "give a number of tokens")
        if deploy["min_bond"] == 0:
            self.wrong("deploy.min_bond", "a case against who has nothing left would cost nothing", "give some tokens")
        per = 1000  # as `pool create` counts: rewards are told per so many units
        rate = pool["reward"] // per
        if rate == 0:
            self.wrong("pool.reward", "less than the smallest part of a token for a unit", f"at least {per} wei")
            return
        units = pool["fund"] // rate
        if units > MAX_TOTAL:
            self.wrong("pool.fund", f"{units:,} units are more than a pool holds", f"at most {MAX_TOTAL:,}: fund less")
        elif units < pool["units_per_epoch"]:
            share = units / pool["units_per_epoch"]
            text = f"pool.fund pays for {units:,} units: {share:.2g} epochs in which units_per_epoch are earned"
            self.warnings.append(f"{text}. What is accepted beyond it waits until somebody funds more.")

    def _people(self) -> None:
        pool = self.pool
        judges = [*pool["validator"], *(self.path(one) for one in pool["validator_state"])]
        trainer = pool["trainer"] or (pool["trainer_state"] and self.path(pool["trainer_state"]))
        if (pool["trainer"] is None) == (pool["trainer_state"] is None):
            self.wrong("pool.trainer", "one of trainer and trainer_state is needed", "name the trainer's node")
        if not 0 < len(judges) <= MAX_VALIDATORS:
            self.wrong("pool.validator", f"{len(judges)} validators", f"a pool has 1 to {MAX_VALIDATORS}")
        if len(set(judges)) < len(judges):
            self.wrong("pool.validator", "one is named twice", "each validator once")
        if trainer in judges:
            self.wrong("pool.trainer", "the trainer is a validator, too: it would judge itself", "name two nodes")
        pool["threshold"] = pool["threshold"] or usual_quorum(len(judges))
        quorum = f"{pool['threshold']} of {len(judges)} validators"
        if pool["threshold"] > len(judges):
            self.wrong("pool.threshold", f"{quorum} can never meet", "lower it, or name more validators")
        # A warning only: a bench of trusted friends may want any two of them to do.
        elif 2 * pool["threshold"] <= len(judges):
            self.warnings.append(f"pool.threshold: {quorum} are no majority: two quorums may disagree")
        if len(pool["uri"].encode()) > MAX_URI_BYTES:
            self.wrong("pool.uri", f"{len(pool['uri'].encode())} bytes", f"at most {MAX_URI_BYTES}")
        if len("\n".join(pool["bootnode"]).encode()) > MAX_BOOTNODES_BYTES:
            self.wrong("pool.bootnode", "together too long", f"at most {MAX_BOOTNODES_BYTES} bytes")

    def _signers(self) -> None:
        deploy, pool = self.deploy, self.pool
        if self.deploys:
            self._signer("deploy.key", deploy["key"])
        self._signer("pool.key", pool["key"])
        for number, provider in enumerate(self.providers, 1):
            self._signer(f"provider {number}.key", provider["key"])
            if not provider["nodes"]:
                self.wrong(f"provider {number}.nodes", "no node", "name the state directories of its nodes")
        # As the command deploys: whoever deploys decides appeals where nobody else is named.
        arbiter = deploy["arbiter"] or address_of(deploy["key"])
        if self.deploys and deploy["treasury"] is not None and arbiter == deploy["treasury"]:
            what = f"{arbiter} would get what is slashed, and decide whether it is"
            self.wrong("deploy.treasury", what, "arbiter and treasury must be two; without a treasury all is burned")
        staked = {node for provider in self.providers for node in provider["nodes"]}
        idle = [one for one in (*pool["validator_state"], pool["trainer_state"]) if one and one not in staked]
        if self.providers and idle:
            names = ", ".join(idle)
            self.warnings.append(f"no provider stakes for {names}: it can neither judge nor be paid until one does")

    def _signer(self, place: str, key: str | None) -> None:
        if key is None and self.network != "local":
            self.wrong(place, "nobody signs", "name a keystore, as `keys list` tells it")
        elif key is not None and address_of(key) is None:
            self.wrong(place, f"there is no key {key!r}", f"make it: intellect-node keys new {key}")

    def _run(self) -> None:
        from node.run.file import load_run_file
        from node.run.survey import survey

        run, root, make = self.pool["run"], self.pool["run_root"], self.pool["make"]
        self.unmade = False
        if (run is None) == (root is None):
            self.wrong("pool.run", "one of run and run_root is needed", "name the run's file")
        elif run is not None:
            path = Path(self.path(run))
            file = self._try("pool.run", lambda: load_run_file(path))
            self.unmade = bool(make) and file is not None and not (path.parent / file.model).exists()
            if file is None or self.unmade:
                return  # what is not made yet is looked at by `pool create`
            looked = self._try("pool.run", lambda: survey(path))
            if looked is not None:
                self.found.join(looked.findings)

    # the commands

    def commands(self) -> list[dict[str, Any]]:
        """In their order: what each does, with amounts, and its words."""
        deploy, pool = self.deploy, self.pool
        rows: list[dict[str, Any]] = []

        def add(says: str, key: str | None, *words: str, sends: bool = True) -> None:
            signer = ["--key", key] if key else []
            network = ["--network", self.network, *signer] if sends else []
            rows.append({"says": says, "sends": sends, "command": ["intellect-node", *words, *network]})

        if self.up:
            add("a chain on this machine, with the contracts", None, "devnet", "up", sends=False)
        if self.unmade:
            says = "the run's files, where this is typed; `pool create` then checks the run"
            rows.append({"says": says, "sends": False, "command": shlex.split(self.pool["make"])})
        states = [node for one in self.providers for node in one["nodes"]]
        states += [one for one in (pool["trainer_state"], *pool["validator_state"]) if one]
        for state in dict.fromkeys(states):
            if not (Path(self.path(state)) / NODE_KEY).is_file():
                add(f"a key for the node in {state}", None, "keys", "new", "--state-dir", self.path(state), sends=False)
        if self.deploys:
            most = ether(deploy["stake_per_unit"])
            says = f"token, vault, swarm, court and chair; a slash takes at most {most} tokens for a unit of a node"
            add(says, deploy["key"], "contract", "deploy", *self._options("deploy"))
            for key, amount in self.needs().items() if deploy["token"] is None else ():
                to = address_of(key)
                if to is not None and amount:
                    words = ("contract", "faucet", to, ether(amount).replace(",", ""))
                    add(f"{ether(amount)} test tokens for {key}", deploy["key"], *words)
        for one in self.providers:
            units, stake = one["units"] * len(one["nodes"]), self.stake(one)
            whose = one["key"] or "the devnet account"
            says = f"{ether(stake)} tokens of {whose} are bonded for {len(one['nodes'])} node(s)"
            add(says, one["key"], "contract", "provider", "register", "--units", str(units))
            for node in one["nodes"]:
                words = ("contract", "node", "register", "--node-state", self.path(node), "--units", str(one["units"]))
                add(f"the node in {node} works under that stake", one["key"], *words)
        says = f"the pool, with {ether(pool['fund'])} tokens; a fault costs {ether(pool['slash'])}"
        add(says, pool["key"], "contract", "pool", "create", *self._options("pool"))
        return rows

    def stake(self, provider: dict[str, Any]) -> int:
        units = provider["units"] * len(provider["nodes"])
        return self.deploy["base_stake"] + self.deploy["stake_per_unit"] * units

    def needs(self) -> dict[Any, int]:
        """By signer: tokens that it spends."""
        needs = {self.pool["key"]: self.pool["fund"]}
        for one in self.providers:
            needs[one["key"]] = needs.get(one["key"], 0) + self.stake(one)
        return needs

    def _options(self, section: str) -> list[str]:
        """What the file gives, as the command's options."""
        words: list[str] = []
        given = dict(self.raw[section])
        if section == "pool":
            # Written out: the commands then open the pool whose times were checked here.
            given |= {"window": f"{self.pool['window']}s", "epoch": f"{self.pool['epoch']}s"}
        for option in [name for name in _FIELDS[section] if name in given and name not in _OURS]:
            value, name = given[option], "--" + option.replace("_", "-")
            if isinstance(value, bool):
                words += [name] if value else []
                continue
            for one in value if isinstance(value, list) else [value]:
                words += [name, self.path(one) if option in _PATHS else str(one)]
        return words


@pool_app.command("plan", epilog="Example:  intellect-node contract pool plan examples/pool.toml")
def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A plan (TOML): see examples/pool.toml.")],
    public: Annotated[
        bool, typer.Option("--public", help="Everything that a pool for strangers takes, in order, with sums.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a plan of a deployment, a pool and its run whole, and print the commands that make it. Sends nothing.

    All mistakes are told at once: times that contradict each other, amounts, who may do what, the quorum, the run. A
    plan that deploys nothing is checked against the contracts that are there.
    """
    made = PlanFile(file)
    road: list[RoadPart] = []
    if public:
        from cli.contract.public import road_of

        road = road_of(made)
    if made.found.total:
        raise tell_findings(file, made.found, cannot="be carried out", code=USAGE, as_json=as_json)
    commands = made.commands()
    tokens = {str(key or "devnet account"): amount for key, amount in made.needs().items()}
    if as_json:
        amounts = {key: str(amount) for key, amount in tokens.items()}
        facts = {"network": made.network, "commands": commands, "tokens_wei": amounts}
        facts |= {"road": msgspec.to_builtins(road)} if public else {}
        print_json(facts | {"window_seconds": made.pool["window"], "warnings": made.warnings})
        return
    rows = [("network", made.network), *((f"{key} needs", f"{ether(wei)} tokens") for key, wei in tokens.items())]
    rows.append(("paid", f"{duration(made.pool['window'])} after an epoch of {duration(made.pool['epoch'])} ends"))
    print_facts(rows)
    if public:
        _show_road(road)
    else:
        _show_commands(commands)
    for warning in made.warnings:
        console().print(f"\nnote: {warning}", markup=False, soft_wrap=True)


def _show_commands(commands: list[dict[str, Any]]) -> None:
    for number, one in enumerate(commands, 1):
        console().print(f"\n# {number}. {one['says']}", markup=False, soft_wrap=True)
        console().print(shlex.join(one["command"]), markup=False, soft_wrap=True)


def _show_road(road: "list[RoadPart]") -> None:
    for number, one in enumerate(road, 1):
        console().print(f"\n{number}. {one.title}", markup=False, soft_wrap=True)
        for line in one.lines:
            console().print(f"   {line}", markup=False, soft_wrap=True)
        for says, command in one.commands:
            console().print(f"\n# {says}\n{command}", markup=False, soft_wrap=True)


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            raw = opened.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise CommandError(f"{file} is no plan", f"it has more than {MAX_BYTES} bytes", "check the file", USAGE)
        return tomllib.loads(raw.decode())
    except OSError as error:
        raise CommandError(f"cannot read {file}", error.strerror or str(error), "check the path", USAGE) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CommandError(f"{file} is no plan", str(error), "see examples/pool.toml", USAGE) from None
