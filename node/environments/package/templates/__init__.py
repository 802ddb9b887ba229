"""Packages to start from: each a whole module that works, `NAME` in place of its name. Nothing here is imported."""

from pathlib import Path

KINDS = {
    "single": "one answer, a reward from 0 to 1",
    "multi-turn": "the environment answers back, and the model tries again",
    "code": "the answer is a program, run in a sandbox of its own",
    "session": "a machine that remembers: files, a shell, Python; hidden tests judge what it leaves",
}


def template(kind: str, name: str) -> str:
    """The text of a new package. kind: one of KINDS."""
    text = Path(__file__).with_name(f"{kind.replace('-', '_')}.py").read_text(encoding="utf-8")
    return text.replace("NAME", name)
