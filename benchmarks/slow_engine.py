"""An engine that rests before each file: `python -m benchmarks.slow_engine SECONDS [engine options]`.

A drop-in for `python -m node.inference.process`, for swarms that are watched for an hour on a machine that others use.
"""

import sys
import time

from node.inference import process, server
from node.inference.produce import produce
from node.inference.session import EngineSession
from node.inference.wire import Produce, Produced


def main() -> None:
    """Serve, slowly."""
    rest = float(sys.argv.pop(1))

    def produce_slowly(session: EngineSession, order: Produce) -> Produced:
        time.sleep(rest)
        return produce(session, order)

    server.produce = produce_slowly
    process.main()


if __name__ == "__main__":
    main()
