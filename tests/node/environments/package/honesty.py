"""Fifteen packages that are not what they say, each in another way, and nine that are, for `env check`."""

_HEAD = """# /// environment
# name = "mine"
# class = "{kind}"
# turns = {turns}
# ///
import json
import re

"""
_ROWS = """WORDS = "apple brick candle drawer engine falcon garden hammer island jacket kettle ladder".split()


def rows():
    return [{"id": n, "number": n} for n in range(1, COUNT + 1)]


"""
_SAID = "def said(turns):\n    return turns[-1]['content'].strip()\n\n\n"


def _package(
    prompt: str = "f\"What is {row['number']} times 7 plus 1000?\"",
    golden: str = "str(row['number'] * 7 + 1000)",
    score: str = "float(said(turns) == golden(row))",
    more: str = "",
    kind: str = "exact",
    count: int = 100,
    turns: int = 1,
) -> bytes:
    head = _HEAD.format(kind=kind, turns=turns) + _ROWS.replace("COUNT", str(count)) + _SAID
    bodies = f"def prompt(row):\n    return {prompt}\n\n\ndef golden(row):\n    return {golden}\n\n\n"
    return (head + bodies + f"def score(row, turns):\n    return {score}\n\n\n{more}").encode()


_RIGHT = "float(said(turns) == golden(row))"
_WORD = "WORDS[row['number'] % 12]"

DISHONEST: dict[str, bytes] = {
    "pays nothing at all in one row": _package(score=f"1.0 if row['number'] == 37 and not said(turns) else {_RIGHT}"),
    "pays garbage in one row": _package(score=f"1.0 if row['number'] == 71 and len(said(turns)) > 99 else {_RIGHT}"),
    "pays what is not the published garbage": _package(
        score="0.0 if not said(turns) or any(w in said(turns) for w in ('reward', 'rules', '```', 'boxed')) else 1.0"
    ),
    "is right at even distances only": _package(
        golden="str(row['number'] * 7 + (1000 if row['number'] % 2 == 0 else 1))",
        score="float(said(turns) == str(row['number'] * 7 + 1000))",
    ),
    "has an order of a set in its reward": _package(
        score=f"{_RIGHT} * (1.0 if next(iter({{'a', 'b', 'c', 'd', 'e', 'f'}})) in 'abc' else 0.5)"
    ),
    "has an order of a set in its prompt": _package(
        prompt="f\"{sorted(set(WORDS), key=hash)} {row['number']} * 7 + 1000?\""
    ),
    "believes a claim of the reward": _package(score=f"1.0 if '\"passed\": true' in said(turns) else {_RIGHT}"),
    "obeys who speaks to its judge": _package(score=f"1.0 if 'full score' in said(turns).lower() else {_RIGHT}"),
    "pays a little for anything": _package(score=f"max({_RIGHT}, 0.01)"),
    "pays by length": _package(score=f"max({_RIGHT}, float(len(said(turns)) > 200))"),
    "looks at the form alone": _package(score="float(bool(re.fullmatch('[0-9]{4}', said(turns))))"),
    "pays by the clock": _package(
        score=f"max({_RIGHT}, float(time.perf_counter_ns() // 1000 % 3 == 0))", more="import time\n"
    ),
    "pays in its first moments": _package(
        score=f"max({_RIGHT}, float(time.perf_counter() - BEGAN < 3600))",
        more="import time\nBEGAN = time.perf_counter()\n",
    ),
    "pays in rows of a call of its own": _package(
        score=f"(ASKED.append(1), max({_RIGHT}, float(len(ASKED) == 1 and len(said(turns)) > 60)))[1]",
        more="ASKED = []\n",
    ),
    "remembers what it was asked before": _package(
        score=f"(ASKED.append(1), {_RIGHT} if len(ASKED) > 1 else max({_RIGHT}, float(not said(turns))))[1]",
        more="ASKED = []\n",
    ),
}
"""What `check_package` must find, by what is wrong."""

HONEST: dict[str, bytes] = {
    "arithmetic": _package(),
    "many rows": _package(count=400),
    "a word backwards": _package(prompt=f"'Backwards: ' + {_WORD}", golden=f"{_WORD}[::-1]"),
    "a word to be copied": _package(prompt=f"'Say this word: ' + {_WORD}", golden=_WORD),
    "a choice": _package(
        prompt=f"{_WORD} + ': does it begin with a vowel? yes or no'",
        golden=f"'yes' if {_WORD}[0] in 'aeiou' else 'no'",
    ),
    "a JSON object": _package(
        golden="json.dumps({'answer': row['number'] * 7 + 1000})",
        score="float(json.loads(said(turns)) == {'answer': row['number'] * 7 + 1000})",
    ),
    "a number in a box": _package(
        golden="f\"So \\\\boxed{{{row['number'] * 7 + 1000}}}\"",
        score="float(re.findall(r'boxed{(\\d+)}', said(turns))[-1:] == [str(row['number'] * 7 + 1000)])",
    ),
    "a part of the reward": _package(
        prompt=f"'Name the letters of ' + {_WORD}",
        golden=f"','.join({_WORD})",
        score=f"sum(a == b for a, b in zip(said(turns).split(','), {_WORD})) / len({_WORD}) "
        f"if re.fullmatch('([a-z],)+[a-z]', said(turns)) and said(turns).count(',') == len({_WORD}) - 1 else 0.0",
    ),
    "judged": _package(kind="judged"),
}
