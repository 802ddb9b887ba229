"""`python scripts/release.py --check`: can this tree be released, as far as one machine can tell?

Each check is a row of CHECKS: what it asks, and the commands or the function that answers. What this machine lacks is
skipped with its reason, and what no machine like it can tell is listed at the end. With --tag nothing may wait in
`changes/`, and the tag is the version's. --notes prints the fragments of `changes/` as they will be read; --join moves
them into CHANGELOG.md, under the version of pyproject.toml.
"""

import argparse
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("added", "changed", "deprecated", "removed", "fixed", "security")
FRAGMENT = re.compile(r"[a-z0-9][a-z0-9-]*\.([a-z]+)\.md")
MOST_WORDS = 80
"""Of a fragment: it is one line of a page."""
SECTION = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d{2}-\d{2})$", re.MULTILINE)
JAVASCRIPT = ("contracts", "contracts/forge", "node/chain/anvil", "examples/member", "tests/node/chain/hardhat")
"""Folders with a package.json of ours."""
CODE = ("protocol", "contracts", "node", "cli", "tests", "examples", "benchmarks", "scripts")
UNTOLD = (
    "other systems and processors than this one, and other versions of Python (.github/workflows has them)",
    "GPUs (benchmarks.gpu, tests on CUDA), vLLM, Hardhat, other makers (make test-vllm, test-hardhat, clients)",
    "the container image: no registry is asked for a base (Containerfile)",
    "an installation whose dependencies come from an index (make dist ARGS=--full)",
    "an upload to an index, and signatures of what is uploaded",
    "the contracts by an auditor",
)
"""What a release needs beyond these checks."""


class Refused(Exception):
    """What is wrong, why, and what to do."""

    def __init__(self, what: str, why: str, remedy: str) -> None:
        super().__init__(f"{what}\n  why: {why}\n  do:  {remedy}")


class Skipped(Exception):
    """Why this machine cannot tell."""


@dataclass(frozen=True)
class Fragment:
    """One change. kind: of KINDS. text: one line of the changelog."""

    file: Path
    kind: str
    text: str


def fragments(folder: Path) -> list[Fragment]:
    """In the order of their names. Raises Refused for the first file that is none."""
    found = []
    for file in sorted(folder.iterdir()):
        if file.name == "README.md":
            continue
        name = FRAGMENT.fullmatch(file.name)
        kind = name.group(1) if name else ""
        if kind not in KINDS:
            why = f"its kind is {kind!r}" if name else "its name is not NAME.KIND.md, in small letters"
            raise Refused(f"{file.name} has no kind", why, f"name it {_stem(file)}.KIND.md, KIND of {', '.join(KINDS)}")
        text = " ".join(file.read_text(encoding="utf-8").split())
        if not text or text.startswith(("-", "#")) or len(text.split()) > MOST_WORDS:
            why = f"it is empty, begins with a dash or a mark, or is longer than {MOST_WORDS} words"
            raise Refused(f"{file.name} is no line of a changelog", why, "write what a user must know, and no more")
        found.append(Fragment(file, kind, text))
    return found


def _stem(file: Path) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", file.name.split(".")[0].lower()).strip("-") or "name"


def notes(found: Sequence[Fragment], said: str = "") -> str:
    """A section by kind: the lines of `said`, a section without its heading, and behind them the new ones."""
    intro, *parts = re.split(r"^### (?=\w+$)", said.strip(), flags=re.MULTILINE)
    lines = {kind.capitalize(): "" for kind in KINDS}
    for part in parts:
        title, _, body = part.partition("\n")
        lines[title] = body.strip()
    for one in found:
        title = one.kind.capitalize()
        lines[title] = f"{lines[title]}\n- {one.text}".strip()
    told = [intro.strip(), *(f"### {title}\n\n{body}" for title, body in lines.items() if body)]
    return "\n\n".join(part for part in told if part)


def joined(changelog: str, version: str, date: str, found: Sequence[Fragment]) -> str:
    """The changelog with them in the section of `version`, which is made where it is not the newest."""
    newest = SECTION.search(changelog)
    if newest is None:
        raise Refused("CHANGELOG.md has no version", "no heading is `## [1.2.3] - 2026-01-31`", "add the first one")
    if newest.group(1) != version:
        section = f"## [{version}] - {date}\n\n{notes(found)}\n\n"
        return changelog[: newest.start()] + section + changelog[newest.start() :]
    after = SECTION.search(changelog, newest.end())
    end = after.start() if after else len(changelog)
    section = f"\n\n{notes(found, changelog[newest.end() : end])}\n\n"
    return (changelog[: newest.end()] + section + changelog[end:]).rstrip() + "\n"


def version_of(root: Path) -> str:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def versions() -> str:
    """One version stands in pyproject.toml, the changelog, the page on stability and our packages of npm's."""
    version = version_of(ROOT)
    newest = SECTION.search((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    told = {"CHANGELOG.md": newest.group(1) if newest else "none"}
    told["docs/stability.md"] = _named(ROOT / "docs" / "stability.md")
    told |= {name: json.loads((ROOT / name / "package.json").read_bytes())["version"] for name in JAVASCRIPT}
    for where, other in told.items():
        if other != version:
            raise Refused(f"{where} names {other}", f"pyproject.toml has {version}", "name one version everywhere")
    return f"{version}, in pyproject.toml and {len(told)} other places"


def _named(page: Path) -> str:
    found = re.search(r"This page is that of version (\d+\.\d+\.\d+)", page.read_text(encoding="utf-8"))
    return found.group(1) if found else "none"


def waiting() -> str:
    found = fragments(ROOT / "changes")
    return f"{len(found)} wait in changes/: {', '.join(one.file.name for one in found) or 'nothing'}"


def tagged(tag: str) -> str:
    """Raises Refused where a tag is not this version's, or something waits in changes/."""
    if tag != f"v{version_of(ROOT)}":
        raise Refused(f"the tag is {tag}", f"the version is {version_of(ROOT)}", "tag what pyproject.toml names")
    if found := fragments(ROOT / "changes"):
        raise Refused(f"{len(found)} changes wait", "a release says them", "python scripts/release.py --join")
    if changed := output("git", "status", "--porcelain").strip():
        raise Refused("the tree is not what is tagged", f"git knows of {changed.splitlines()[0]}", "commit it first")
    return f"{tag}; nothing waits, nothing is uncommitted"


def output(*command: str) -> str:
    """What a program prints. Raises Refused with the end of it where the program fails."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        shown = "\n       ".join(done.stdout.strip().splitlines()[-15:])
        what = " ".join(command).replace(sys.executable, "python")
        raise Refused(f"`{what}` ended with {done.returncode}", shown or "it says nothing", "mend that, and again")
    return done.stdout


def program(*words: str) -> Callable[[], str]:
    """A check that is a program of this environment: the last line that it prints is what was found."""

    def ask() -> str:
        lines = output(sys.executable, *words).strip().splitlines()
        return lines[-1] if lines else "as it should be"

    return ask


def lint() -> str:
    output(sys.executable, "-m", "ruff", "format", "--check", *CODE)
    return program("-m", "ruff", "check", ".")()


def contracts() -> str:
    if shutil.which("node") is None:
        raise Skipped("node, which runs the compiler, is not here")
    output(sys.executable, "-m", "contracts.build", "--check")
    return "the artifacts are what the sources compile to"


def site() -> str:
    """MkDocs itself where it is here; the links alone are looked at by tests/test_docs.py."""
    own = ROOT / "build" / "docs-venv" / "bin" / "mkdocs"
    if own.exists():
        output(str(own), "build", "--quiet", "--strict")
    elif importlib.util.find_spec("mkdocs") is not None:
        output(sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict")
    else:
        raise Skipped("MkDocs is not here (make docs installs it); the links were looked at by tests/test_docs.py")
    return "build/site, no broken link"


PYTEST = ("-m", "pytest", "-q")
CHECKS: dict[str, Callable[[], str]] = {
    "version": versions,
    "changes": waiting,
    "lint": lint,
    "locked files, links, upgrade": program(
        *PYTEST, *(f"tests/test_{one}.py" for one in ("locked", "docs", "release")), "tests/upgrade"
    ),
    "vectors": program("scripts/vectors.py", "--check"),
    "contracts": contracts,
    "site": site,
    "wheel and sdist": program("scripts/dist.py"),
    "sbom": program("scripts/sbom.py"),
}
"""What is asked -> what answers: a sentence, Refused or Skipped. From quick to slow."""
MAKE = ("lint", "test-contracts", "test", "tutorials")
"""Targets of the Makefile that --full asks, too: an hour on two cores."""


def check(checks: dict[str, Callable[[], str]]) -> tuple[list[str], list[str]]:
    """Run each; say what came out. Names of those that failed, and of those that could not be asked."""
    failed, skipped = [], []
    for name, ask in checks.items():
        started = time.monotonic()
        try:
            mark, told = "ok", ask()
        except Skipped as why:
            mark, told = "skipped", str(why)
            skipped.append(name)
        except Refused as why:
            mark, told = "FAILED", str(why)
            failed.append(name)
        print(f"{mark:8}{name}: {told} ({time.monotonic() - started:.0f} s)", flush=True)
    return failed, skipped


def checked(tag: str, *, full: bool) -> int:
    checks = dict(CHECKS)
    if tag:
        checks = {"tag": lambda: tagged(tag), **checks}
    if full:
        checks |= {f"make {one}": lambda one=one: output("make", one).strip().splitlines()[-1] for one in MAKE}
    failed, skipped = check(checks)
    print("\nnot checked:")
    untold = [*(f"{name} (skipped)" for name in skipped), *UNTOLD]
    untold += [] if full else [f"make {', '.join(MAKE)} (--full)"]
    untold += [] if tag else ["that the tree is what a tag names (--tag vX.Y.Z)"]
    print("\n".join(f"  - {one}" for one in untold))
    print(json.dumps({"version": version_of(ROOT), "failed": failed, "skipped": skipped}))
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="run all checks; exit code 1 where one fails")
    what.add_argument("--notes", action="store_true", help="print what waits in changes/")
    what.add_argument("--join", action="store_true", help="move what waits in changes/ into CHANGELOG.md")
    parser.add_argument("--tag", default="", metavar="vX.Y.Z", help="with --check: the tag that is released")
    parser.add_argument("--full", action="store_true", help=f"with --check: make {', '.join(MAKE)}, too")
    options = parser.parse_args()
    try:
        if options.check:
            return checked(options.tag, full=options.full)
        found = fragments(ROOT / "changes")
        if options.notes:
            print(notes(found))
            return 0
        changelog = ROOT / "CHANGELOG.md"
        text = joined(changelog.read_text(encoding="utf-8"), version_of(ROOT), time.strftime("%Y-%m-%d"), found)
        changelog.write_text(text, encoding="utf-8")
        for one in found:
            one.file.unlink()
        print(f"{len(found)} changes moved into CHANGELOG.md")
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
