"""Which versions are promised to work together."""

import pytest

from protocol.versions import understand


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("0.2.0", "0.2.7", True),
        ("0.2.0", "0.3.0.dev1", True),
        ("0.3.0", "0.2.0+local", True),
        ("0.2.0", "0.4.0", False),
        ("1.0.0", "0.9.0", False),
        ("0.2.0", "", None),
        ("0.2.0", "0+source", None),
        ("0.2.0", "0.99999.0", None),
        ("0.2.0", "0.2\n", None),
    ],
)
def test_a_minor_version_and_the_next_one_understand_each_other(one: str, other: str, together: bool | None) -> None:
    assert understand(one, other) is understand(other, one) is together
