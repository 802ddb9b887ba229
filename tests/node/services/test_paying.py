"""A worker's commitments: each accepted file goes on chain once, whatever fails, and is shown until it is paid."""

from typing import Any

import trio

from node.chain.errors import ChainError, Reverted
from node.clock import Clock
from node.services.paying import Paying
from protocol.messages import WorkPublished
from protocol.work import Leaf, decode_leaves, merkle_root, tree_of
from tests.attacks.validators.court import WORKER, InlineJournal
from tests.node.services.test_settling import EPOCH, POOL, RATE, WINDOW, Chain


class Board:
    def __init__(self) -> None:
        self.posted: list[WorkPublished] = []

    async def post(self, message: WorkPublished) -> None:
        await trio.lowlevel.checkpoint()
        self.posted.append(message)


class Blobs:
    def __init__(self) -> None:
        self.held: list[bytes] = []

    async def add(self, data: bytes) -> Any:
        from protocol.blobs import describe

        await trio.lowlevel.checkpoint()
        self.held.append(data)
        return describe(data)


class Treasury(Chain):
    """Takes commitments as the contract does. down: nobody answers."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.down = False
        self.lost_answer = False
        self.roots: dict[int, bytes] = {}

    async def _answer(self) -> None:
        await super()._answer()
        if self.down:
            raise ChainError("no answer", "the endpoint is down", "wait")

    async def commit_work(self, pool: int, epoch: int, root: bytes, units: int) -> None:
        await self._answer()
        if epoch in self.roots or self.now() >= self.info.commit_until(epoch):
            name = "AlreadyCommitted" if epoch in self.roots else "CommitTooLate"
            raise Reverted("commit", name, {})
        self.roots[epoch] = root
        self.commit(epoch, units, WORKER.address)
        if self.lost_answer:
            raise ChainError("no answer", "lost on its way back", "wait")


class Books:
    """A worker's state directory; the service may start again over it."""

    def __init__(self, treasury: Treasury, monkeypatch: Any) -> None:
        monkeypatch.setattr("node.services.paying.RETRY_PAUSE", 50.0)
        monkeypatch.setattr(trio.to_thread, "run_sync", self._inline)
        self.treasury, self.journal = treasury, InlineJournal()
        self.board, self.blobs = Board(), Blobs()
        self.made = 0

    @staticmethod
    async def _inline(work: Any, *args: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return work(*args)

    def accept(self, units: int = 10) -> Leaf:
        """One more file of ours is accepted."""
        self.made += 1
        file = Leaf(bytes([7]) * 32, self.made, self.made.to_bytes(32), units)
        self.journal.add_file(file.file_root, file.policy_root, file.index, units, trio.current_time())
        self.journal.judge_file(file.file_root, "accepted")
        return file

    async def live(self, seconds: float) -> None:
        class Station:
            pool, key, journal, board, blobs = POOL, WORKER, self.journal, self.board, self.blobs
            clock = Clock(wall=trio.current_time)

        with trio.move_on_after(seconds):
            await Paying(Station(), self.treasury).run()  # type: ignore[arg-type]

    def root(self, *files: Leaf) -> bytes:
        return merkle_root(tree_of(POOL, WORKER.address, sorted(files, key=lambda file: file.file_root)))


async def test_files_whose_epoch_was_missed_go_under_the_next_and_none_twice(autojump_clock, monkeypatch) -> None:
    chain = Treasury()
    books = Books(chain, monkeypatch)
    first = books.accept()
    await trio.sleep(EPOCH - 100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(books.live, 30 * EPOCH)
        await trio.sleep(90)
        chain.trouble = 0.0
        real, chain.commit_work = chain.commit_work, _refuse  # type: ignore[method-assign]
        await trio.sleep(WINDOW // 2 + EPOCH + 1000)
        assert chain.roots == {} and books.journal.epochs_from(0)[0] > 0, "its epoch is over, the file is free"
        chain.commit_work = real  # type: ignore[method-assign]
        await trio.sleep(2 * EPOCH)
    assert list(chain.roots.values()) == [books.root(first)]


async def _refuse(*_: Any) -> None:
    await trio.lowlevel.checkpoint()
    raise ChainError("no answer", "the endpoint is down", "wait")


async def test_a_commitment_whose_answer_got_lost_is_known_after_a_restart(autojump_clock, monkeypatch) -> None:
    chain = Treasury()
    books = Books(chain, monkeypatch)
    first = books.accept()
    await trio.sleep(EPOCH + 1)
    chain.lost_answer = True
    await books.live(20)
    chain.lost_answer = False
    second = books.accept()
    await books.live(EPOCH + 400)
    assert chain.roots == {0: books.root(first), 1: books.root(second)}
    assert {message.root for message in books.board.posted} == set(chain.roots.values())


async def test_leaves_are_shown_again_and_after_a_restart_until_they_are_mature(autojump_clock, monkeypatch) -> None:
    chain = Treasury()
    books = Books(chain, monkeypatch)
    first, second = books.accept(), books.accept()
    await trio.sleep(EPOCH + 1)
    await books.live(WINDOW // 4)
    shown = len(books.board.posted)
    assert shown >= 6 and len(set(books.board.posted)) == 1
    await books.live(60)
    assert len(books.board.posted) > shown
    assert set(decode_leaves(books.blobs.held[-1])) == {first, second}
    await trio.sleep(WINDOW)
    shown = len(books.board.posted)
    await books.live(WINDOW // 4)
    assert len(books.board.posted) == shown, "nobody can object any more"


async def test_what_the_pool_cannot_pay_waits_for_money_but_not_until_it_is_forgotten(
    autojump_clock, monkeypatch
) -> None:
    chain = Treasury(escrow=25)
    books = Books(chain, monkeypatch)
    for _ in range(4):
        books.accept()
    await trio.sleep(EPOCH + 1)
    await books.live(100)
    assert chain.work_of == {(WORKER.address, 0): [20, 20]}
    chain.free += 1000
    await books.live(EPOCH + 400)
    assert chain.work_of[WORKER.address, 1] == [20, 20]
    old = books.accept()
    await trio.sleep(WINDOW + 2 * EPOCH)
    young = books.accept()
    await trio.sleep(EPOCH)
    await books.live(100)
    [last] = [root for epoch, root in chain.roots.items() if epoch > 1]
    assert last == books.root(young) != books.root(young, old)
    assert sum(units for units, _ in chain.work_of.values()) * RATE == 50 * RATE
