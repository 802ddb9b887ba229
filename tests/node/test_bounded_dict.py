from hypothesis import given
from hypothesis import strategies as st

from node.bounded_dict import BoundedDict

KEYS = st.integers(0, 7)
STEPS = st.lists(st.tuples(st.sampled_from(["set", "setdefault", "update", "pop"]), KEYS, st.integers()))


@given(STEPS, st.integers(1, 5), st.booleans())
def test_it_holds_what_was_set_last(steps: list[tuple[str, int, int]], limit: int, refresh: bool) -> None:
    table, model = BoundedDict[int, int](limit, refresh=refresh), list[tuple[int, int]]()
    for step, key, value in steps:
        known = dict(model)
        if step == "pop":
            assert table.pop(key, None) == known.get(key)
            model = [entry for entry in model if entry[0] != key]
        elif step == "setdefault":
            assert table.setdefault(key, value) == known.get(key, value)
            model = model if key in known else [*model, (key, value)]
        else:
            table.__setitem__(key, value) if step == "set" else table.update({key: value})
            if key in known and not refresh:
                model = [(k, value if k == key else v) for k, v in model]
            else:
                model = [*(entry for entry in model if entry[0] != key), (key, value)]
        model = model[-limit:]
        assert list(table.items()) == model and all(table.get(key) == dict(model).get(key) for key in range(8))


def test_reading_keeps_nothing_alive() -> None:
    table = BoundedDict[str, int](2, refresh=True)
    table["a"], table["b"] = 1, 2
    assert table["a"] == table.get("a") == 1
    table["c"] = 3
    assert list(table) == ["b", "c"]
