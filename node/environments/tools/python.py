"""The Python tool: each call runs in a fresh copy of the sandbox, by counted instructions, and tells what it prints."""

from collections.abc import Sequence

from node.environments.guests import guest
from node.environments.programs import Opener
from node.sandbox import Limits, Outcome, Sandbox, Status, Undecided

NAME = "python"
_ENTRY = "intellect_session"


class PythonTool:
    """Opened when first called. most: characters of a result that are looked at."""

    about = "runs Python and tells what it prints; nothing is kept from one call to the next"

    def __init__(self, opener: Opener, limits: Limits, most: int) -> None:
        self._opener = opener
        self._limits = limits
        self._most = most
        self._sandbox: Sandbox | None = None

    def answer(self, text: str) -> str:
        """Raises Undecided."""
        return _told(self._opened().call("run", NAME, text, self._most))

    def answers(self, texts: Sequence[str]) -> list[str | Undecided]:
        """Equal calls are made once: they have one result."""
        different = list(dict.fromkeys(texts))
        outcomes = self._opened().call_all("run", [(NAME, text, self._most) for text in different])
        found = dict(zip(different, outcomes, strict=True))
        return [one if isinstance(one, Undecided) else _told(one) for one in (found[text] for text in texts)]

    def another(self) -> "PythonTool":
        return PythonTool(self._opener, self._limits, self._most)

    def _opened(self) -> Sandbox:
        if self._sandbox is None:
            self._sandbox = self._opener({f"{_ENTRY}.py": guest(_ENTRY)}, _ENTRY, self._limits)
        return self._sandbox

    def close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.close()


def _told(outcome: Outcome) -> str:
    """What the model is told: of a call that did not come to its end, only how that was."""
    if outcome.status is Status.OK and isinstance(outcome.value, str):
        return outcome.value
    return f"the call ended early: {outcome.status.value}"
