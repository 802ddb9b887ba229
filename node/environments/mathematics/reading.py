"""A spelt text -> what it is: a list, a set, an interval, cases, a relation, a quantity, an expression, words.

Whole or not at all: what fits no form is `words`, which equals the same words only. Nothing is picked out of a text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from node.environments.mathematics.spelling import spelt, trimmed
from node.environments.numbers import number

MAX_DEPTH = 12
MAX_ITEMS = 256


@dataclass(frozen=True, slots=True)
class MathExpression:
    """kind: as in `read`; text: its source, spelt; items: its parts; extra: what else it says (the signs of a relation,
    an interval's brackets, a base, a unit)."""

    kind: str
    text: str
    items: "tuple[MathExpression, ...]" = ()
    extra: tuple[str, ...] = ()


_TOKEN = re.compile(r"\\begin\s?\{[a-zA-Z]{1,20}\*?\}|\\end\s?\{[a-zA-Z]{1,20}\*?\}|\\[a-zA-Z]+|\\.|.", re.DOTALL)
_SIGN = {"=": "=", "<": "<", ">": ">", "\\leq": "\\leq", "\\geq": "\\geq", "\\neq": "\\neq", "\\approx": "\\approx"}
_SIGN |= {"\\equiv": "\\equiv", "\\in": "\\in"}
_SETS = {"\\cup": "union", "\\cap": "intersection", "\\setminus": "difference"}
_ENVIRONMENT = re.compile(r"\\begin\s?\{([a-zA-Z]{1,20})\*?\}(.*)\\end\s?\{\1\*?\}", re.DOTALL)
_COLUMNS = re.compile(r"^\s*\{[clr|\s]{0,40}\}")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_SPACED = re.compile(r"[+-]?\d{1,3}(?: \d{3})+(?:\.\d+)?")
_DECIMAL_COMMA = re.compile(r"([+-]?0),(\d+)")
_MIXED = re.compile(r"(-?)(\d{1,100}) (\d{1,100})/(\d{1,100})")
_REPEATING = re.compile(r"(-?)(\d{0,50})\.(\d{0,50})\\(?:overline|bar|dot) ?\{ ?(\d{1,50}) ?\}")
_BASED = re.compile(
    r"\(?([0-9A-Z]{1,200}(?:\.[0-9A-Z]{1,100})?)\)? ?_ ?(?:\{ ?(?:\\text\{)?([a-z0-9]{1,12})\}? ?\}|(\d))"
)
_IN_BASE = re.compile(r"([0-9A-Z]{1,200}) ?\(?(?:\\text\{)? ?\(?(?:in )?base[ -]?(\d{1,2}|[a-z]{2,9})\)?\}?\)?")
_NUMBER_WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()
_CHOICE = re.compile(
    r"(?:(?i:option|choice|answer) )?(?:\\text\{ ?)?\(?([A-J])(?:[.:)]{0,2}\}?|(?:\)|[.:])[.:]? ?\}? (?! |[-+=<>^]).*)",
    re.DOTALL,
)
_ANOTHER_CHOICE = re.compile(r"[,;/] ?\(?[A-J](?:[.):]|$)")
"""E. 12 or D. 13 is no choice."""
_AMOUNT = re.compile(
    r"([+-]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?: ?\\times 10\^\{[+-]?\d{1,3}\})?"
    r"|[+-]?(?:\d+ ?)?\\frac ?\{[^{}]{1,60}\} ?\{[^{}]{1,60}\}|[+-]?\d+/\d+"
    r"|[+-]?\d*(?:\.\d+)? ?\\sqrt ?\{[^{}]{1,60}\}|[+-]?\d*(?:\.\d+)? ?\\pi)"
    r" ?((?:\\text\{[^{}]{1,60}\}|\\circ|(?<![a-zA-Z\\])[a-zA-Z]{2,20}(?![a-zA-Z])"
    r"|\^ ?\{ ?-?[1-4] ?\}|[/. ]|\\cdot )++)"
)
_DOTS = re.compile(r"(?:\\ldots|\\vdots|\\ddots)")
_WORDS = re.compile(r"(?:\\text\{[^{}]*\}|[^\W\d_]{2,}+|[\s'-])++")
_SHORT_WORDS = frozenset({"yes", "no", "odd", "all", "one", "two", "six", "ten"})
_LETTERS = re.compile(r"[^\W\d_]{2,}")


def read(text: str) -> MathExpression:
    """kinds: number, expression, words, percent, quantity, amounts, based, choice, list (without brackets), set, tuple,
    interval, union, intersection, difference, matrix, cases, relation, ratio, plus-minus, dots."""
    return _read(spelt(text), 0)


def parts_of(text: str, marks: "frozenset[str] | set[str]") -> list[str]:
    """The text around the marks that stand in no brackets: part, mark, part, ..."""
    found, start, depth = [], 0, 0
    for token in _TOKEN.finditer(text):
        one = token[0]
        if one[0] == "\\":
            one = one.rstrip()
        if one in ("(", "[", "{", "\\{") or one.startswith("\\begin"):
            depth += 1
        elif one in (")", "]", "}", "\\}") or one.startswith("\\end"):
            depth -= 1
        elif depth == 0 and one in marks:
            found += [text[start : token.start()], one]
            start = token.end()
    return [*found, text[start:]]


_SEMICOLON, _COMMA, _COLON = frozenset({";"}), frozenset({","}), frozenset({":"})
_SIGNS, _JOINED = frozenset(_SIGN), frozenset(_SETS)
_PLUS_MINUS = frozenset({"\\pm", "\\mp"})
_BOTH = ("\\pm",)
"""What a list says that stands for plus-minus: in another list it is two of its items."""


def _read(text: str, depth: int) -> MathExpression:
    text = _unwrapped(trimmed(text))
    if not text or depth > MAX_DEPTH:
        return MathExpression("words", text)
    for reader in (_simple, _environment, _listed, _related, _united, _bracketed, _measured):
        found = reader(text, depth)
        if found is not None:
            return found
    return MathExpression("expression", text)


def _unwrapped(text: str) -> str:
    """Without braces around all of it: in LaTeX they say nothing."""
    while text.startswith("{") and text.endswith("}") and _closes(text) == len(text) - 1:
        text = trimmed(text[1:-1])
    return text


def _closes(text: str) -> int:
    """Where the bracket that begins a text closes; -1 where it does not. Round and square ones may close each other."""
    depth = 0
    for token in _TOKEN.finditer(text):
        if token[0] in ("(", "[", "{", "\\{"):
            depth += 1
        elif token[0] in (")", "]", "}", "\\}"):
            depth -= 1
            if depth == 0:
                return token.end() - 1
    return -1


def _simple(text: str, depth: int) -> MathExpression | None:
    if _DOTS.fullmatch(text):
        return MathExpression("dots", text)
    value = value_of(text)
    if value is not None:
        return MathExpression("number", text, extra=(str(value),))
    if (found := _BASED.fullmatch(text) or _IN_BASE.fullmatch(text)) is not None:
        base = next(one for one in found.groups()[1:] if one)
        base = str(_NUMBER_WORDS.index(base)) if base in _NUMBER_WORDS else base
        if base.isdecimal() and any(digit.isdecimal() for digit in found[1]):
            return MathExpression("based", text, extra=(found[1].lstrip("0") or "0", base))
    if (found := _CHOICE.fullmatch(text)) is not None and not _ANOTHER_CHOICE.search(text, found.end(1)):
        return MathExpression("choice", text, extra=(found[1], text[found.end(1) :].lstrip(" ).:}").strip()))
    return None


def value_of(text: str) -> Fraction | None:
    """What a number in digits is worth: 1,234 and 1 234, 0,5, 2 1/2, 0.\\overline{3}."""
    if (found := number(text)) is not None:
        return found
    if (word := text.removeprefix("\\text{").removesuffix("}").strip().lower()) in _NUMBER_WORDS:
        return Fraction(_NUMBER_WORDS.index(word))
    if comma := _DECIMAL_COMMA.fullmatch(text):
        return number(f"{comma[1]}.{comma[2]}")
    if _THOUSANDS.fullmatch(text) or _SPACED.fullmatch(text):
        return number(text.replace(",", "").replace(" ", ""))
    if (mixed := _MIXED.fullmatch(text)) and int(mixed[4]):
        value = int(mixed[2]) + Fraction(int(mixed[3]), int(mixed[4]))
        return -value if mixed[1] else value
    if repeating := _REPEATING.fullmatch(text):
        whole, begun, again = int(repeating[2] or 0), repeating[3], repeating[4]
        rest = int(begun + again) - int(begun or 0)
        value = whole + Fraction(rest, (10 ** len(again) - 1) * 10 ** len(begun))
        return -value if repeating[1] else value
    return None


def _environment(text: str, depth: int) -> MathExpression | None:
    """A matrix or cases, as all of the text or in brackets."""
    inner = text
    if inner[0] in "([|" and inner[-1] in ")]|" and inner[1:].lstrip().startswith("\\begin"):
        inner = inner[1:-1].strip()
    found = _ENVIRONMENT.fullmatch(inner)
    if found is None:
        return None
    name, body = found[1], _COLUMNS.sub("", found[2])
    if "\\begin" in body:
        return None  # a sum or a product of matrices
    lines = [trimmed(line) for line in parts_of(body, {"\\\\"})[::2]]
    rows = [[trimmed(cell) for cell in parts_of(line, {"&"})[::2]] for line in lines if line]
    kind = "cases" if name in ("cases", "aligned", "array") and inner == text and name != "array" else "matrix"
    if sum(map(len, rows)) > MAX_ITEMS:
        return MathExpression("words", text)
    read_rows = tuple(MathExpression("tuple", "", tuple(_read(cell, depth + 1) for cell in row)) for row in rows)
    return MathExpression(kind, text, read_rows, (name if name in ("vmatrix", "Vmatrix") else "",))


def _listed(text: str, depth: int) -> MathExpression | None:
    """Parts between semicolons, else between commas."""
    for marks in (_SEMICOLON, _COMMA):
        parts = parts_of(text, marks)[::2]
        if len(parts) > 1:
            parts = _grouped(parts) if marks is _COMMA else parts
            items = [part for part in map(trimmed, parts) if part]
            if len(items) > MAX_ITEMS or len(items) < 2:
                return MathExpression("words", text)
            return MathExpression("list", text, tuple(_read(part, depth + 1) for part in items))
    return None


def _grouped(parts: list[str]) -> list[str]:
    """1,234, 5,678 is two numbers: a comma without a blank in front of three digits belongs to one."""
    if not any(part.startswith(" ") for part in parts):
        return parts
    found: list[str] = []
    for part in parts:
        together = f"{found[-1]},{part}" if found else ""
        if part[:1] != " " and _THOUSANDS.fullmatch(together.strip()):
            found[-1] = together
        else:
            found.append(part)
    return found


def _related(text: str, depth: int) -> MathExpression | None:
    parts = parts_of(text, _SIGNS)
    if len(parts) == 1 or len(parts) > 2 * MAX_ITEMS:
        return None
    sides, signs = [trimmed(side) for side in parts[::2]], parts[1::2]
    if not all(sides):
        return MathExpression("words", text)
    # x \in S says S; what comes behind \approx says less than what stands before it.
    if signs == ["\\in"]:
        return _read(sides[1], depth + 1) if _is_name(sides[0]) else MathExpression("words", text)
    if "\\approx" in signs:
        at = signs.index("\\approx")
        if at == 0 and _is_name(sides[0]):
            return _read(sides[1], depth + 1)
        return _read("".join(part for part in parts[: 2 * at + 1]), depth + 1)
    return MathExpression("relation", text, tuple(_read(side, depth + 1) for side in sides), tuple(signs))


_NAME = re.compile(r"(?:[a-zA-Z]|\\[a-zA-Z]++ ?+|[\s{}|'(),:/]|_ ?\{[^{}]{0,20}\}|_ ?\w|\\text\{[^{}]{0,40}\})++")
_CALL = re.compile(r"[a-zA-Z]\w{0,10}'{0,3} ?\([^()]{0,40}\)")


def _is_name(text: str) -> bool:
    """Whether a side only names what the other side is: x, f(2), \\frac{NO}{BO}, (p,q), S_{ABC}:S."""
    return bool(_NAME.fullmatch(text) and re.search(r"[a-zA-Z]", text)) or bool(_CALL.fullmatch(text))


is_name = _is_name


def _united(text: str, depth: int) -> MathExpression | None:
    parts = parts_of(text, _JOINED)
    if len(parts) == 1 or len(parts) > 2 * MAX_ITEMS:
        return None
    if not all(trimmed(part) for part in parts[::2]) or len(set(parts[1::2])) > 1:
        return MathExpression("words", text)
    return MathExpression(_SETS[parts[1]], text, tuple(_read(part, depth + 1) for part in parts[::2]))


def _bracketed(text: str, depth: int) -> MathExpression | None:
    braces = text.startswith("\\{")
    if text[0] not in "([" and not braces:
        return None
    end = _closes(text)
    if end != len(text) - 1:
        return None
    inner = text[2:-2] if braces else text[1:-1]
    if braces:
        if not text.endswith("\\}") or "|" in inner or ":" in inner:
            return MathExpression("words", text)  # a set that says what is in it
        inside = _read(inner, depth + 1) if inner.strip() else MathExpression("list", "")
        return MathExpression("set", text, inside.items if inside.kind == "list" else (inside,))
    parts = parts_of(inner, _SEMICOLON)[::2]
    parts = parts if len(parts) > 1 else parts_of(inner, _COMMA)[::2]
    if len(parts) == 1:
        return None if text[0] == "(" and text[-1] == ")" else _single(text, inner, depth)
    if len(parts) > MAX_ITEMS or not all(trimmed(part) for part in parts):
        return MathExpression("words", text)
    items = tuple(_read(part, depth + 1) for part in parts)
    if text[0] + text[-1] == "()":
        return MathExpression("tuple", text, items)
    return (
        MathExpression("interval", text, items, (text[0], text[-1]))
        if len(items) == 2
        else MathExpression("tuple", text, items)
    )


def _single(text: str, inner: str, depth: int) -> MathExpression:
    """[5] is a list of one; of an expression in brackets nobody knows."""
    return _read(inner, depth + 1) if text[0] + text[-1] == "[]" else MathExpression("words", text)


def _measured(text: str, depth: int) -> MathExpression | None:
    """Ratios, plus-minus, percent, quantities, words."""
    parts = parts_of(text, _COLON)
    if len(parts) > 1:
        if all(trimmed(part) for part in parts[::2]):
            return MathExpression("ratio", text, tuple(_read(part, depth + 1) for part in parts[::2]))
        return MathExpression("words", text)
    parts = parts_of(text, _PLUS_MINUS)
    if len(parts) == 3 and trimmed(parts[2]):
        both = [_read(f"{parts[0]}{sign}({parts[2]})", depth + 1) for sign in ("+", "-")]
        return MathExpression("list", text, tuple(both), _BOTH)
    if text.endswith("%") and text.count("%") == 1:
        return MathExpression("percent", text, (_read(text[:-1], depth + 1),))
    amounts = list(_amounts(text, depth))
    if amounts:
        return amounts[0] if len(amounts) == 1 else MathExpression("amounts", text, tuple(amounts))
    if _WORDS.fullmatch(text) and _LETTERS.search(text) and ("\\text" in text or " " in text or _is_word(text)):
        return MathExpression("words", text)
    return None


def _is_word(text: str) -> bool:
    """Long words are no products of letters."""
    return len(text) > 3 or text.lower() in _SHORT_WORDS


def _amounts(text: str, depth: int) -> Iterator[MathExpression]:
    """Quantities in a row that are all of a text: 5 hours 30 minutes."""
    found, place = [], 0
    while place < len(text):
        one = _AMOUNT.match(text, place)
        if one is None or not _is_unit(one[2]):
            return
        found.append(MathExpression("quantity", one[0], (_read(one[1], depth + 1),), unit_of(one[2])))
        place = one.end()
    yield from found


_BARE_WORD = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]+")
_FUNCTIONS = frozenset(
    "sin cos tan cot sec csc log exp max min gcd lcm det mod arcsin arccos arctan sinh cosh tanh".split()
)


def _is_unit(text: str) -> bool:
    """Whether what follows a number is a unit, not letters that it is multiplied with."""
    bare = [found[0] for found in _BARE_WORD.finditer(_IN_TEXT.sub(" ", text))]
    known = all(one in _MEASURES or (len(one) > 2 and one not in _FUNCTIONS) for one in bare)
    return known and ("\\text" in text or "\\circ" in text or bool(bare))


_IN_TEXT = re.compile(r"\\text\{[^{}]*\}")
_MEASURES: dict[str, str] = {
    name: canonical
    for canonical, names in {
        "mm": "mm millimeter millimetre", "cm": "cm centimeter centimetre", "dm": "dm decimeter decimetre",
        "m": "m meter metre", "km": "km kilometer kilometre", "in": "in inch inches", "ft": "ft foot feet",
        "yd": "yd yard", "mi": "mi mile", "mg": "mg milligram", "g": "g gram gm", "kg": "kg kilogram",
        "lb": "lb pound lbs", "oz": "oz ounce", "t": "ton tonne", "ml": "ml milliliter millilitre mL",
        "l": "l L liter litre",
        "ms": "ms millisecond", "s": "s sec second", "min": "min minute", "h": "h hr hour", "d": "day", "wk": "week",
        "mo": "month", "yr": "yr year", "deg": "deg degree degrees", "rad": "rad radian", "mph": "mph",
        "kmh": "kmh kph",
        "cent": "cent", "dollar": "dollar", "euro": "euro", "J": "J joule", "kJ": "kJ kilojoule", "N": "N newton",
        "W": "W watt", "kW": "kW kilowatt", "V": "V volt", "A": "amp ampere", "Hz": "Hz hertz", "Pa": "Pa pascal",
        "K": "K kelvin", "C": "C celsius", "F": "F fahrenheit", "mol": "mol mole", "gal": "gal gallon", "acre": "acre",
        "ha": "ha hectare", "rev": "revolution", "ohm": "ohm", "eV": "eV", "bit": "bit", "byte": "byte",
    }.items()
    for name in names.split()
}  # fmt: skip
_POWERS = {"square": "2", "squared": "2", "sq": "2", "cubic": "3", "cubed": "3", "cu": "3"}
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_CHANGES = frozenset(
    "and or half halve third quarter dozen fifth tenth times dozen plus minus less more over from to of".split()
)
_UNIT = re.compile(r"[a-zA-Z]+|\\circ|\^ ?\{ ?(-?\d) ?\}|/")


def unit_of(text: str) -> tuple[str, ...]:
    """The measures of a unit with their powers, then its other words: ("cm^2", "rope"). "?" stands for a word that
    changes what the number is worth."""
    measures, words, power, per = [], [], "1", ""
    for found in _UNIT.finditer(text.replace("\\text", " ").replace("\\cdot", " ")):
        one = found[0]
        if one in ("/", "per"):
            per = "-"
        elif one[0] == "^":
            if measures:
                measures[-1] = f"{measures[-1].partition('^')[0]}^{per}{found[1].lstrip('-')}"
        elif one in _POWERS:
            if measures and one.endswith("d"):
                measures[-1] = f"{measures[-1].partition('^')[0]}^{per}{_POWERS[one]}"
            else:
                power = _POWERS[one]
        elif (scale := _SCALES.get(_single_of(one.lower()))) is not None:
            words.append(f"*{scale}")
        elif one.lower() in _CHANGES or _single_of(one.lower()) in _CHANGES:
            words.append("?")
        else:
            name = "deg" if one == "\\circ" else _MEASURES.get(one) or _MEASURES.get(_single_of(one.lower()))
            if name is None:
                words.append(one.lower())
            else:
                measures.append(f"{name}^{per}{power}")
                power = "1"
    return (*sorted(measures), *words)


def _single_of(word: str) -> str:
    return word[:-1] if word.endswith("s") and len(word) > 2 and word not in _MEASURES else word
