"""Our own functions on what strangers wrote, in child processes that may be killed: a few, kept warm.

An answer is a stranger's text, and a regular expression of Python holds its process for as long as it runs. So whatever
looks for something in an answer does it here; a comparison, or one search for a fixed word, may stay where it is.

Two validators must come to one reward, and a clock says something else on every machine. Therefore no clock decides
over a reward: an answer of more than MAX_ANSWER_CHARACTERS (protocol.audit) is none, which everybody sees alike, and
each function here takes time in proportion to its text (`python -m benchmarks.scorers`), far below the deadline. The
deadline is for a function whose slow case nobody has found yet. It counts the child's own processor time: where a
machine has other work, an answer waits and stays decided. What it ends is Undecided: no reward here, nothing that
contradicts another validator's, and no fault of the worker's.
"""

import atexit
import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

from node.environments.errors import EnvironmentFault, Undecided
from node.environments.lines import LineChild
from node.sandbox.runtime import child_environment


class ScoringPool:
    """Blocks; for any thread. A child costs 0.2 s when there is none yet. deadline: seconds of the child's processor
    time for each call. needs: a package that its children import before anything is asked, outside of any deadline."""

    # The slowest scorer takes a quarter of a second for the longest answer.
    def __init__(self, deadline: float = 20.0, needs: str = "") -> None:
        self._deadline = deadline
        command = [sys.executable, "-P", "-m", "node.environments.scoring_pool", str(deadline)]
        self._command = [*command, needs] if needs else command
        self._lock = threading.Lock()
        self._idle: list[LineChild] = []

    def call_all(self, function: Callable[..., Any], calls: Sequence[Sequence[Any]]) -> list[Any | Undecided]:
        """function(*arguments) for each; arguments and results are JSON. A call that raises has the result None: it
        raises on every machine."""
        found: list[Any | Undecided] = []
        child = self._taken()
        try:
            for some in _together(calls):
                waiting = list(some)
                while waiting:
                    replies = self._replies(child, function, waiting)
                    found += replies
                    # A call without an answer has ended its child. The next `send` starts another for the rest.
                    waiting = waiting[len(replies) :]
        except BaseException:
            child.close()  # it may be in the middle of an answer
            raise
        self._give_back(child)
        return found

    def read(self, function: Callable[[str], str | None], texts: Sequence[str]) -> list[str | None | Undecided]:
        """What a function finds in each text."""
        return self.call_all(function, [(text,) for text in texts])

    def close(self) -> None:
        """End the children that wait. Others are started when they are needed."""
        with self._lock:
            idle, self._idle = self._idle, []
        for child in idle:
            child.close()

    def _replies(
        self, child: LineChild, function: Callable[..., Any], calls: Sequence[Sequence[Any]]
    ) -> list[Any | Undecided]:
        """What comes back, up to the first call without an answer in time."""
        # All is sent before anything is read: the child reads its whole line first, so no pipe is full on both sides.
        child.send([function.__module__, function.__qualname__, [list(arguments) for arguments in calls]])
        replies: list[Any | Undecided] = []
        for _ in calls:
            # By the clock only where the child gets no processor, or waits for something: 5 s become a minute.
            reply = child.receive(12 * self._deadline)
            if reply is None:
                why = f"its process ended, or took more than {self._deadline:g} s of a processor for one"
                return [*replies, Undecided("an answer cannot be scored here", why, "other machines may decide it")]
            replies.append(reply[0])
        return replies

    def _taken(self, *, start_seconds: float = 60.0) -> LineChild:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return LineChild(self._command, child_environment(), start_seconds, self._refused)

    def _refused(self, said: Any) -> EnvironmentFault | None:
        if said == ["ready"]:
            return None
        remedy = "install intellect-node[train]; then look at this machine's memory and load"
        return EnvironmentFault("answers cannot be scored", "the scoring process did not start", remedy)

    def _give_back(self, child: LineChild) -> None:
        with self._lock:
            # Children that wait for the next call. Threads that score at the same time have one each: none waits for
            # another.
            if len(self._idle) < 2:
                self._idle.append(child)
                return
        # Outside of the lock: closing waits for the process to end.
        child.close()


POOL = ScoringPool()
"""That of this process: scorers are many, and are seldom at work at the same time."""
atexit.register(POOL.close)


def _together(calls: Sequence[Sequence[Any]]) -> Iterator[Sequence[Sequence[Any]]]:
    """The calls in parts of so many characters, or of one that is longer."""
    start = size = 0
    # Characters that are sent together: sending costs milliseconds on a busy machine, and one call may be long.
    most_characters = 1 << 20
    for place, arguments in enumerate(calls):
        length = sum(len(one) for one in arguments if isinstance(one, str))
        if place > start and size + length > most_characters:
            yield calls[start:place]
            start, size = place, 0
        size += length
    if start < len(calls):
        yield calls[start:]


def main() -> None:
    """The child, with its seconds for a call and what it imports as arguments: [module, function, [arguments, ...]] in,
    one [result] for each list of arguments out. End of input ends it. Out of memory does, too: how much there is
    differs, so that it decides nothing."""
    import resource

    memory_bytes = 2 * 1024**3
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    # A crash in C code must not write the child's memory to the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable(logging.CRITICAL)  # what algebra complains of
    seconds = float(sys.argv[1])
    for needed in sys.argv[2:]:
        import_module(needed)
    print('["ready"]', flush=True)
    for line in sys.stdin:
        module, name, calls = json.loads(line)
        # The parent alone writes these lines, and it names functions of this program. Answers are arguments only.
        function = getattr(import_module(module), name)
        for arguments in calls:
            # In a list, since null is a result of its own and None means that no answer came.
            # Its signal ends the process, also in the middle of a call into C, which would let a handler wait.
            signal.setitimer(signal.ITIMER_PROF, seconds)
            found = _result(function, arguments)
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            print(json.dumps([found]), flush=True)


def _result(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Called from the same depth of the stack each time, because what recursion may use ends at a depth."""
    try:
        return function(*arguments)
    except MemoryError:
        sys.exit(1)
    # Not told apart: a recursion too deep, too, is the same everywhere, since calls begin at one depth.
    except Exception:
        return None


if __name__ == "__main__":
    main()
