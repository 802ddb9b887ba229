"""What a trainer keeps of the terms that it has followed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.errors import StateError
from node.services.training.leading import Leading


@pytest.mark.parametrize("data", [b"", b"seven", b"\xff"])
def test_a_damaged_note_of_the_term_is_not_taken_for_none_and_the_way_that_is_named_helps(
    tmp_path: Path, data: bytes
) -> None:
    spool: Any = SimpleNamespace(root=tmp_path)
    nothing: Any = SimpleNamespace(state=SimpleNamespace(policies=None), membership=SimpleNamespace(terms=None))
    leading = Leading(nothing, spool, nothing, nothing, nothing, None)
    assert leading._known() == 0
    (tmp_path / "term").write_bytes(data)
    with pytest.raises(StateError, match="damaged") as caught:
        leading._known()
    assert "write the present term" in caught.value.remedy
    (tmp_path / "term").write_text("7\n")
    assert leading._known() == 7
