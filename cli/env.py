"""`intellect-node env`: environments of one's own: write one, check it, publish it, see which there are."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from cli import api
from cli.errors import RUN, USAGE, CommandError
from cli.output import AsJson, clean, console, print_facts, print_json, quiet_logs
from cli.places import StateDir, chosen_directory, state_dir_option

if TYPE_CHECKING:
    from node.environments.package.check import PackageFinding, PackageReport
    from node.run.packages import KnownPackage

app = typer.Typer(no_args_is_help=True, help="Environments: write one, check it, publish it, see which there are.")
Package = Annotated[str, typer.Argument(help="A .py module, a directory, a .tar, or the root of one known here.")]


@app.command(
    "new",
    epilog="Examples:  intellect-node env new capitals   |   intellect-node env new guess --kind multi-turn   |   "
    "intellect-node env new sums --kind code --out envs/sums.py",
)
def new(
    name: Annotated[str, typer.Argument(help="Its name: lower-case letters, digits, '-' and '_'.")],
    kind: Annotated[str, typer.Option(help="single, multi-turn, code or session.")] = "single",
    out: Annotated[Path | None, typer.Option(help="The file to write. Default: NAME.py here.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a working environment in one file, ready to be changed."""
    from node.environments.errors import nearest
    from node.environments.package.manifest import is_name
    from node.environments.package.templates import KINDS, template

    if kind not in KINDS:
        raise CommandError(f"there is no kind {kind!r}", "known are " + ", ".join(KINDS), nearest(kind, KINDS), USAGE)
    if not is_name(name):
        why = "it is taken by a built-in one, or has other characters than lower-case letters, digits, '-' and '_'"
        raise CommandError(f"{name!r} cannot be an environment's name", why, "choose another", USAGE)
    file = out or Path(f"{name.replace('-', '_')}.py")
    if file.exists() and not force:
        raise CommandError(f"{file} is there already", "it may hold work of yours", "name another, or add --force")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(template(kind, name).replace("THIS_FILE", str(file)), encoding="utf-8")
    if as_json:
        return print_json({"file": str(file), "name": name, "kind": kind})
    console().print(f"wrote {file}; next: intellect-node env check {file}", soft_wrap=True, markup=False)
    return None


@app.command(
    "check",
    epilog="Examples:  intellect-node env check capitals.py   |   intellect-node env check envs/sums --rows 20 --json",
)
def check(
    package: Package,
    rows: Annotated[int, typer.Option(min=1, help="Most rows to play; which ones is drawn.")] = 200,
    seed: Annotated[
        str, typer.Option(help="Seed that an earlier check printed, to draw the same rows. Default: a new one.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Play an environment's rows in different processes and compare. Exit code 6 names what is wrong.

    The golden answer must get 1; nothing, garbage, and answers that attack the grader must get 0. Every row is asked
    about nothing and drawn garbage.
    """
    import secrets

    from node.environments.package.archive import read_source
    from node.environments.package.check import all_ways, check_package

    # Drawn anew: an environment that was fitted to the rows of one check is found by the next.
    seed = seed or secrets.token_hex(8)
    known = _kept(package)
    with quiet_logs(), _progress(quiet=as_json) as progress:
        report = check_package(
            read_source(known.path), all_ways(native=known.manifest.runs_natively), rows, progress, seed.encode()
        )
    if as_json:
        print_json(_as_json(known, report, seed))
    else:
        _show(known, report, seed)
    if report.findings:
        first = report.findings[0]
        what = f"{known.manifest.name} is not fit for a run: {len(report.findings)} findings"
        raise CommandError(what, f"row {first.row}: {clean(first.what, 500)}", first.remedy, RUN)
    if report.undecided:
        why = f"{report.undecided} plays took too long, or this machine lacked memory"
        raise CommandError(f"{known.manifest.name} was not decided", why, "check it on a quieter machine", RUN)


@app.command(
    "publish",
    epilog="Examples:  intellect-node env publish capitals.py   |   "
    "intellect-node env publish capitals.py --state-dir ~/nodes/a   |   "
    "intellect-node env publish capitals.py --mirror /srv/environments",
)
def publish(
    package: Package,
    state_dir: Annotated[
        Path | None, state_dir_option("A node that shall hold it, and offer it to its pool if it runs.")
    ] = None,
    mirror: Annotated[
        Path | None, typer.Option(help="A directory to put it into as ROOT.tar, for a web server.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Pack an environment, keep it here, and print the root that run files may name. It is not checked: see `check`.

    A run brings its packages along, so that its members need nothing but the run.
    """
    from node.state.files import write_whole

    known = _kept(package)
    if mirror is not None:
        mirror.mkdir(parents=True, exist_ok=True)
        write_whole(mirror / f"{known.root}.tar", known.path.read_bytes())
    if state_dir is not None:
        _offer(known, state_dir)
    if as_json:
        return print_json(_facts(known))
    print_facts([("environment", known.manifest.name), ("root", known.root), ("bytes", known.size), ("at", known.path)])
    return console().print(f'in a run file: [environment] package = "{known.root}"', markup=False, soft_wrap=True)


@app.command("fetch", epilog="Example:  intellect-node env fetch 4b68a0fc... --from https://example.org/environments")
def fetch(
    root: Annotated[str, typer.Argument(help="64 hex digits.")],
    url: Annotated[str, typer.Option("--from", help="Where somebody published it with --mirror: a URL.")],
    as_json: AsJson = False,
) -> None:
    """Get a published environment by its root, which proves that it is the one."""
    from node.run.package_fetch import fetch as fetch_package
    from node.run.packages import is_root

    # `search` and run files write NAME@ROOT; the root alone decides.
    root = root.rpartition("@")[2]
    if not is_root(root):
        raise CommandError(f"{clean(root, 80)!r} is no root", "a root has 64 hex digits", "copy it whole", USAGE)
    known = fetch_package(root, url)
    if as_json:
        return print_json(_facts(known))
    return print_facts([("environment", known.manifest.name), ("root", known.root), ("at", known.path)])


@app.command("list", epilog="Examples:  intellect-node env list   |   intellect-node env list --json")
def list_(as_json: AsJson = False) -> None:
    """Show the environments that run files may name: built-in ones, and packages that are known here."""
    from node.environments.builtin import BUILTIN
    from node.environments.task_types.table import TASK_TYPES
    from node.run.packages import known

    packages = list(known())
    if as_json:
        return print_json(
            {
                "built_in": [{"name": row.name, "about": row.about} for row in BUILTIN.values()],
                "task_types": [
                    {"name": one.name, "about": one.about, "class": one.determinism} for one in TASK_TYPES.values()
                ],
                "packages": [_facts(one) for one in packages],
            }
        )
    _print_table([(row.name, "", row.about) for row in BUILTIN.values()], "built in")
    _print_table([(one.name, one.determinism, one.about) for one in TASK_TYPES.values()], "task_type in dataset")
    for one in packages:
        about = f"{one.manifest.name}  ({one.manifest.determinism}) {clean(one.manifest.about)}"
        console().print(about, markup=False, soft_wrap=True)
        console().print(f"  {one.root}", soft_wrap=True)
    return None


def _print_table(rows: list[tuple[str, str, str]], title: str) -> None:
    """Rows of (name, class, about)."""
    table = Table(title=title, title_justify="left", box=None, show_header=False, padding=(0, 2), show_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, kind, what in rows:
        table.add_row(name, kind, what)
    console().print(table)


def _kept(package: str) -> "KnownPackage":
    """The package, as this user's copy."""
    from node.run.packages import named

    return named(package, Path())


@app.command(
    "search",
    epilog="Examples:  intellect-node env search   |   intellect-node env search math --state-dir ~/nodes/a --json",
)
def search(
    word: Annotated[str, typer.Argument(help="In its name, its description or its root. Default: all.")] = "",
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Show the environment packages that members of a pool offer, as a running node has heard of them.

    A name belongs to nobody. Packages whose names look alike are marked; a root says which one it is.
    """
    from urllib.parse import quote

    answer = api.ask(api.socket_of(chosen_directory(state_dir)), "GET", f"/environments?word={quote(word)}")
    if as_json:
        return print_json(answer)
    for one in answer["environments"]:
        _show_offer(one)
    return console().print(f"{answer['found']} found; intellect-node env show NAME@ROOT fetches one")


@app.command(
    "show", epilog="Examples:  intellect-node env show capitals   |   intellect-node env show capitals@4b68a0fc --json"
)
def show(
    text: Annotated[str, typer.Argument(help="NAME, ROOT (or how it begins) or NAME@ROOT, as `search` tells it.")],
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a package that somebody offers, compare it with its offer, and keep it for run files to name.

    Exit code 6 where it is not what its offer says.
    """
    from urllib.parse import quote

    from node.run.packages import keep

    answer = api.ask(api.socket_of(chosen_directory(state_dir)), "GET", f"/environments/{quote(text)}")
    if answer["differs"]:
        what = f"{clean(answer['name'])} is not what its offer says"
        raise CommandError(what, clean("; ".join(answer["differs"]), 500), "do not use it", RUN)
    # `keep` parses the archive again: a daemon may be older, or another program.
    known = keep(Path(answer["file"]).read_bytes())
    if as_json:
        return print_json({**_facts(known), "publishers": answer["publishers"], "reviews": answer["reviews"]})
    _show_offer(answer)
    return console().print(
        f'in a run file: [environment] package = "{known.manifest.name}@{known.root}"', markup=False, soft_wrap=True
    )


def _show_offer(one: dict[str, Any]) -> None:
    """Badges are what reviewers signed, nobody's word about them."""
    reviews = one["reviews"]
    badge = "not reviewed"
    if reviews:
        badge = f"{reviews['agreeing']} of {reviews['reviewers']} reviewers agree, {reviews['asked']} were asked"
    line = f"{clean(one['name'])}@{one['root'][:16]}  ({one['determinism']}, {one['turns']} turns, {one['size']} bytes)"
    console().print(f"{line}  {clean(one['about'])}", markup=False, soft_wrap=True)
    console().print(f"  {badge}; offered by {', '.join(one['publishers'])}", markup=False, soft_wrap=True)
    if one["alike"]:
        alike = ", ".join(clean(other) for other in one["alike"])
        console().print(f"  looks like {alike}: make sure which one you want", markup=False, soft_wrap=True)


def _offer(known: "KnownPackage", state_dir: Path) -> None:
    """By the node if it runs; else it holds the package, and offers nothing."""
    import msgspec
    import trio

    from node.run.packages import put_into_store

    socket = api.socket_of(state_dir)
    if socket.exists():
        api.ask(socket, "POST", "/environments", msgspec.json.encode({"file": str(known.path)}))
    else:
        trio.run(put_into_store, known, state_dir)


def _facts(known: "KnownPackage") -> dict[str, Any]:
    manifest = known.manifest
    return {
        "name": manifest.name,
        "root": known.root,
        "class": manifest.determinism,
        "turns": manifest.turns,
        "about": clean(manifest.about),
        "bytes": known.size,
        "path": str(known.path),
    }


def _as_json(known: "KnownPackage", report: "PackageReport", seed: str) -> dict[str, Any]:
    import msgspec

    def told(findings: "list[PackageFinding]") -> list[dict[str, Any]]:
        return [{"row": one.row, "what": clean(one.what, 500), "remedy": one.remedy} for one in findings]

    return _facts(known) | {
        "good": report.good,
        "rows": report.rows,
        "checked": report.checked,
        "ways": list(report.ways),
        "seed": seed,
        "swept": report.swept,
        "findings": told(report.findings),
        "warnings": told(report.warnings),
        "fuel": msgspec.to_builtins(report.fuel),
        "seconds": msgspec.to_builtins(report.seconds),
        "undecided": report.undecided,
        "faults": report.faults,
    }


def _show(known: "KnownPackage", report: "PackageReport", seed: str) -> None:
    out = console()
    fuel, seconds = report.fuel, report.seconds
    print_facts(
        [
            ("environment", known.manifest.name),
            ("class", known.manifest.determinism),
            ("turns", known.manifest.turns),
            ("root", known.root),
            ("rows", f"{report.checked:,} of {report.rows:,} played, drawn with --seed {seed}"),
            ("all rows", f"{report.swept:,} asked about nothing and drawn garbage"),
            (
                "golden answers",
                f"instructions: median {fuel.median:.3g}, 95 % below {fuel.p95:.3g}, most {fuel.most:.3g} (row "
                f"{fuel.row}); ms: {1000 * seconds.median:.0f}, {1000 * seconds.p95:.0f}, {1000 * seconds.most:.0f}",
            ),
            ("processes", "; ".join(report.ways)),
            ("scorer failed", f"{report.faults} times, which is the floor" if report.faults else "never"),
        ]
    )
    shown = 20
    for one in report.findings[:shown]:
        out.print(f"[red]row {one.row}:[/] {escape(clean(one.what, 500))}; {escape(one.remedy)}", soft_wrap=True)
    for one in report.warnings:
        out.print(f"[yellow]row {one.row}:[/] {escape(clean(one.what, 500))}; {escape(one.remedy)}", soft_wrap=True)
    if len(report.findings) > shown:
        out.print(f"and {len(report.findings) - shown} more (--json shows them)")
    if report.good:
        out.print("[green]fit for a run[/]")


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("rows"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(), disable=quiet, transient=True) as shown:
        task = shown.add_task("rows", total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
