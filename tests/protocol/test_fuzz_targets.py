"""The fuzzers' targets take their honest inputs, and some hundred damaged ones in every run of the suite."""

import random

import pytest

from scripts.fuzz_proofs import measured, mutated
from scripts.fuzz_targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_whatever_a_stranger_writes_ends_in_an_answer_or_in_the_parsers_own_error(name: str) -> None:
    subject, source = TARGETS[name], random.Random(0)
    call = measured(subject.call)
    for data in subject.honest:
        call(data)
    for _ in range(200):
        call(mutated(source.choice(subject.honest), source, subject.words))


def test_memory_beyond_the_size_class_of_an_input_is_a_finding() -> None:
    with pytest.raises(MemoryError):
        measured(lambda data: print(len(bytes(400_000)), end=""))(b"small")


def test_what_only_the_first_call_takes_is_no_finding() -> None:
    first = [400_000]
    measured(lambda data: print(len(bytes(first.pop() if first else 1)), end=""))(b"small")
    assert not first
