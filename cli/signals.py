"""Work that a signal ends in good order."""

import signal
from collections.abc import Awaitable, Callable

import trio


async def until_signalled(work: Callable[[], Awaitable[object]], told: Callable[[], None] | None = None) -> None:
    """Do the work; SIGINT and SIGTERM cancel it, and its cleaning up is not cut short. told: called for each signal.

    Raises KeyboardInterrupt if there was one.
    """
    received: list[int] = []
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def heed() -> None:
                async for number in signals:
                    received.append(number)
                    if told:
                        told()
                    nursery.cancel_scope.cancel()

            nursery.start_soon(heed)
            await work()
            nursery.cancel_scope.cancel()
    if received:
        raise KeyboardInterrupt
