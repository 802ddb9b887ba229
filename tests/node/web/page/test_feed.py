"""What viewers are told: each change once, the newest state for whoever was away."""

import json
import random
from typing import Any

from node.web.page.feed import Feed


def told(feed: Feed, version: int) -> dict[str, Any]:
    return {name: json.loads(data) for name, data in feed.since(version)}


def test_only_what_is_different_counts_as_changed() -> None:
    feed = Feed()
    feed.put("run", {"step": 1})
    feed.put("node", {"role": "worker"})
    seen = feed.version
    feed.put("run", {"step": 1})
    feed.put("node", {"role": "trainer"})
    assert told(feed, seen) == {"node": {"role": "trainer"}}
    assert told(feed, feed.version) == {}
    assert told(feed, 0) == {"run": {"step": 1}, "node": {"role": "trainer"}}


def test_of_a_table_only_changed_rows_are_told_and_all_of_it_when_one_went_away() -> None:
    feed = Feed()
    feed.put_rows("members", {"a": ("a", 1), "b": ("b", 1), "c": ("c", 1)})
    seen = feed.version
    feed.put_rows("members", {"a": ("a", 1), "b": ("b", 2), "c": ("c", 1)})
    assert told(feed, seen)["members"] == {"whole": False, "rows": [["b", 2]]}
    feed.put_rows("members", {"b": ("b", 2), "c": ("c", 1)})
    assert told(feed, seen)["members"]["whole"]
    assert sorted(told(feed, seen)["members"]["rows"]) == [["b", 2], ["c", 1]]
    assert told(feed, feed.version) == {}


def test_whoever_looks_however_seldom_ends_with_the_newest_state() -> None:
    """A property: viewers of different pace, over changes of every kind, all hold the table as it is."""
    chance = random.Random(3)
    feed, rows = Feed(), dict[str, tuple[str, int]]()
    viewers = [(every, [0], dict[str, tuple[str, int]]()) for every in (1, 2, 7, 40)]
    for turn in range(120):
        for key in chance.sample("abcdefghij", 3):
            rows[key] = (key, chance.randrange(4))
        if turn % 17 == 16:
            rows.pop(chance.choice(sorted(rows)))
        feed.put_rows("t", dict(rows))
        for every, seen, held in viewers:
            if turn % every and turn != 119:
                continue
            table = told(feed, seen[0]).get("t", {"whole": False, "rows": []})
            if table["whole"]:
                held.clear()
            held.update({row[0]: tuple(row) for row in table["rows"]})
            seen[0] = feed.version
    assert all(held == rows for _, _, held in viewers)
