"""Questions that do not wait for each other, asked at once: over a slow line each costs a round trip."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any


def at_once(*questions: Callable[[], Any]) -> list[Any]:
    """The answers, in the order of the questions. Raises what the first of those raises that fail. The context's
    variables are the caller's."""
    with ThreadPoolExecutor(len(questions)) as pool:
        return [asked.result() for asked in [pool.submit(copy_context().run, question) for question in questions]]
