"""How many blocks are asked for at once."""

from node.chain.logs import FIRST, MOST, BlockSpan

FEW = 1_000
MANY = 2_500
CAUTIOUS = 64


def _questions(blocks: int, limit: int, logs_per_block: float = 0.0, most_logs: int = 10_000) -> int:
    """Questions that a newcomer asks an endpoint for that many blocks, the refused ones included."""
    span, read, asked = BlockSpan(), 0, 0
    while read < blocks:
        size = min(span.blocks, blocks - read)
        asked += 1
        logs = int(size * logs_per_block)
        if size > limit or logs > most_logs:
            assert span.refused(size)
            continue
        span.answered(size, logs)
        read += size
    return asked


def test_a_month_of_quiet_blocks_takes_few_questions() -> None:
    month = 30 * 86_400 // 2
    assert _questions(month, limit=MOST) < 30
    assert _questions(month, limit=10_000) < 300
    assert _questions(month, limit=1_000) < 1.1 * month / 500


def test_an_endpoint_that_limits_answers_is_asked_for_less() -> None:
    assert _questions(100_000, limit=MOST, logs_per_block=2.0) < 200


def test_what_was_refused_is_not_asked_again_at_once_but_later() -> None:
    span = BlockSpan()
    assert span.refused(FIRST)
    for _ in range(CAUTIOUS - 1):
        span.answered(span.blocks, FEW)
        assert span.blocks == FIRST // 2
    span.answered(span.blocks, FEW)
    span.answered(span.blocks, FEW)
    assert span.blocks > FIRST // 2


def test_a_short_question_says_nothing_and_a_long_answer_halves_the_next() -> None:
    span = BlockSpan()
    span.answered(1, 0)
    assert span.blocks == FIRST
    span.answered(FIRST, MANY)
    assert span.blocks == FIRST // 2


def test_answers_stay_small_where_every_block_says_something() -> None:
    span, longest = BlockSpan(), 0
    for _ in range(50):
        longest = max(longest, 5 * span.blocks)
        span.answered(span.blocks, 5 * span.blocks)
    assert longest <= MANY


def test_one_block_that_is_refused_is_an_error() -> None:
    assert not BlockSpan().refused(1)
