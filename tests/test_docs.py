"""What the documents name is there: paths in backticks and links, and benchmarks that one is told to run."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TREES = "benchmarks|cli|contracts|docs|examples|node|protocol|scripts|tests"
PATH = re.compile(rf"(?:{TREES})/[\w./-]*\w")
QUOTED = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
ADR = re.compile(r"\bADR (\d{3})\b")
MODULE = re.compile(r"python -m ((?:benchmarks|contracts|examples|tests)\.[\w.]*\w)((?:[^`\n#|&\\]|\\\n)*)")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LIST = ROOT / "benchmarks" / "README.md"
NEW = ("brand_new", "NAME")
"""In the name of what a reader is told to add."""


def anchors(page: Path) -> set[str]:
    """What a link may name behind `#`, as GitHub and MkDocs make it of headings."""
    headings = HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"`|\[([^]]*)\]\([^)]*\)", r"\1", one)).lower().replace(" ", "-")
        for one in headings
    }


def missing(page: Path, text: str) -> Iterator[str]:
    """What a page names and the tree does not have."""
    for target in LINK.findall(text):
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        if "://" not in target and not (there.exists() and (not anchor or anchor in anchors(there))):
            yield target
    for number in ADR.findall(text):
        if not list((ROOT / "docs" / "adr").glob(f"{number}-*.md")):
            yield f"ADR {number}"
    for quoted in QUOTED.findall(FENCE.sub("", text)):
        for path in PATH.findall(quoted) if PATH.match(quoted) else ():
            if not any(new in path for new in NEW) and not (ROOT / path).exists():
                yield path
    for module, words in MODULE.findall(text):
        place = ROOT / module.replace(".", "/")
        file = next((one for one in (place.with_suffix(".py"), place / "__main__.py") if one.exists()), None)
        if any(new in module for new in NEW):
            continue
        if file is None:
            yield f"python -m {module}"
        elif module.startswith("benchmarks.") and page.name != "CHANGELOG.md":  # which says what there was
            known = {"--help", "--quick", "--json", *re.findall(r'"(--[\w-]+)"', file.read_text())}
            yield from (f"python -m {module} {one}" for one in OPTION.findall(words) if one not in known)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page: Path) -> None:
    assert list(missing(page, page.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "text",
    [
        "`node/nowhere.py`",
        "[x](nowhere.md)",
        "[x](docs/README.md#nowhere)",
        "`python -m benchmarks.nothing`",
        "`python -m benchmarks.gas --nothing`",
        "ADR 001 ADR 998",
    ],
)
def test_what_is_not_there_is_found(text: str) -> None:
    assert len(list(missing(ROOT / "README.md", text))) == 1


def test_each_benchmark_is_listed_has_a_quick_form_and_a_page_that_quotes_it() -> None:
    rows = re.findall(r"^\| `benchmarks\.([\w.]+)` \|.*\(\.\./(docs/[\w/-]+\.md)\) \|$", LIST.read_text(), re.MULTILINE)
    programs = {
        ".".join(file.relative_to(ROOT / "benchmarks").with_suffix("").parts).removesuffix(
            ".__main__"
        ): file.read_text()
        for file in (ROOT / "benchmarks").rglob("*.py")
        if '__name__ == "__main__"' in file.read_text()
    }
    programs = {
        name: text
        for name, text in programs.items()
        if name not in ("quick", "curves_trl") and not name.startswith("gpu.")
    }
    assert sorted(programs) == sorted(name for name, _ in rows)
    assert [name for name, text in programs.items() if not re.search(r"parser_of\(__doc__|\"--quick\"", text)] == []
    assert [name for name, page in rows if f"benchmarks.{name}" not in (ROOT / page).read_text()] == []


def test_a_benchmark_starts_only_programs_that_are_there() -> None:
    texts = [file.read_text() for tree in ("benchmarks", "cli", "node") for file in (ROOT / tree).rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"-m benchmarks\.([a-z_.]+[a-z])", text)}
    places = {name: ROOT / "benchmarks" / name.replace(".", "/") for name in named}
    assert [name for name, at in places.items() if not at.with_suffix(".py").exists() and not at.is_dir()] == []


def test_code_names_no_decision_that_is_gone() -> None:
    code = [
        file
        for tree in ("node", "cli", "protocol", "contracts/src", "tests")
        for file in (ROOT / tree).rglob("*")
        if file.suffix in (".py", ".sol", ".js")
    ]
    here = Path(__file__)
    texts = {file: file.read_text(encoding="utf-8") for file in code if file != here}
    numbers = {number for text in texts.values() for number in ADR.findall(text)}
    assert [number for number in numbers if not list((ROOT / "docs" / "adr").glob(f"{number}-*.md"))] == []
    assert [
        file for file, text in texts.items() if "decisions.md" in text or re.search(r"\b[Dd]ecisions? \d+\.\d", text)
    ] == []


def test_the_readme_can_be_followed_from_top_to_bottom() -> None:
    """A command's name is explained before it is used, and what a command is given is there for a reader."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = [line for block in FENCE.findall(text) for line in block.splitlines()]
    found = next(i for i, line in enumerate(commands) if line.startswith("source .venv/bin/activate"))
    assert not [line for line in commands[:found] if line.startswith("intellect-node")]
    assert not [line for line in commands if line.startswith(".venv/bin/intellect-node")], "one name, not two"
    assert "make install" in text and "intellect-node --install-completion" in text
    assert "rollout.arrow" not in text, "a file that nobody has"


MOST_WORDS = 3000
"""Of a page: what one reads at a time."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_can_be_read_at_one_time(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").split()) <= MOST_WORDS, "move a part of it, as docs/README.md shows"


def test_figures_name_a_command_and_the_machine() -> None:
    texts = {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "figures").glob("*.md")}
    commands, machines = (
        re.compile(r"benchmarks\.\w|make |intellect-node "),
        re.compile(r"\bcores?\b|H100|\bGPU\b|machine"),
    )
    assert len(texts) >= 10
    assert [name for name, text in texts.items() if not (commands.search(text) and machines.search(text))] == []


def test_every_page_is_on_the_site_and_all_attacks_hang_on_one() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [page.relative_to(ROOT / "docs") for page in PAGES if page.is_relative_to(ROOT / "docs")]
    assert [
        str(one) for one in pages if "adr/0" not in str(one) and f": {one}" not in nav and one.parts[0] != "adr"
    ] == []
    index = (ROOT / "docs" / "attacks.md").read_text(encoding="utf-8")
    assert [one.name for one in (ROOT / "docs" / "attacks").glob("*.md") if f"](attacks/{one.name})" not in index] == []
