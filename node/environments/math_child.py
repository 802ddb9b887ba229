"""The scoring child: JSON lines [answer, [truth, ...]] in, whether it is right out. See math_scorer.py.

math-verify's own time-outs are switched off: they need signals and the main thread, and the parent's
deadline does the work. End of input ends the process.
"""

import json
import logging
import sys
from typing import Any

from node.environments.math_scorer import limit_memory


def main() -> None:
    limit_memory()
    logging.disable(logging.CRITICAL)
    from math_verify import parse, verify

    def boxed(text: str) -> list[Any]:
        return parse(f"\\boxed{{{text}}}", parsing_timeout=0)

    def right(answer: str, truths: list[str]) -> bool:
        given = boxed(answer)
        return any(verify(boxed(truth), given, timeout_seconds=0) for truth in truths)

    print('["ready"]', flush=True)
    for line in sys.stdin:
        answer, truths = json.loads(line)
        try:
            verdict = right(answer, truths)
        except (Exception, MemoryError, RecursionError):  # noqa: BLE001 - whatever algebra does, it is a wrong answer
            verdict = False
        print(json.dumps(bool(verdict)), flush=True)


if __name__ == "__main__":
    main()
