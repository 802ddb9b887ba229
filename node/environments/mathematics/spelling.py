"""One spelling for the mathematics that people write: LaTeX without what only looks, Unicode's signs as LaTeX's.

Nothing is dropped here that says something. In time proportional to the text: no expression looks for an end that may
be missing.
"""

import re
from unicodedata import normalize

_SIGNS = str.maketrans(
    {"\u00b0": "^{\\circ}", "\u221e": "\\infty ", "\u00b1": "\\pm ", "\u222a": "\\cup ", "\u2229": "\\cap "}
    | {"\u2208": "\\in ", "\u2260": "\\neq ", "\u00b7": "\\cdot ", "\u22c5": "\\cdot ", "\u2212": "-", "\u2013": "-"}
    | {"\u03c0": "\\pi ", "\u2205": "\\emptyset ", "\u00d7": "\\times ", "\u00f7": "\\div ", "\u2264": "\\leq "}
    | {"\u2265": "\\geq ", "\u2248": "\\approx ", "\u2026": "\\ldots ", "\u211d": "\\mathbb{R}", "\u2217": "*"}
    | {"\u00bd": "\\frac{1}{2}", "\u00bc": "\\frac{1}{4}", "\u00be": "\\frac{3}{4}", "\u2153": "\\frac{1}{3}"}
    | {"\u2154": "\\frac{2}{3}", "\u03b1": "\\alpha ", "\u03b2": "\\beta ", "\u03b8": "\\theta ", "\u03bb": "\\lambda "}
    | {
        "\u2220": "\\angle ",
        "\u2229": "\\cap ",
        "\u2216": "\\setminus ",
        "\u2124": "\\mathbb{Z}",
        "\u2115": "\\mathbb{N}",
    }
    | {"\u2018": "'", "\u2019": "'", "\u2032": "'", "\u201c": '"', "\u201d": '"', "\u20ac": "$", "\u00a3": "$"}
    | {"\u00a5": "$", "\u20b9": "$", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u200b": "", "\ufeff": ""}
)
_RAISED = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b\u207f]+")
_LOWERED = re.compile("[\u2080-\u2089]+")
_ROOT = re.compile("\u221a *(?:\\(([^()]{1,100})\\)|([0-9]{1,30}|[a-zA-Z]))")
_EMPHASIS = re.compile(r"\*{1,3}([^*]*)\*{1,3}(?=$)")
_SCIENTIFIC = re.compile(r"([+-]?[0-9.]{1,1024})[eE]([+-]?[0-9]{1,3})")
_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z{}])")
# A mark between groups of three digits that cannot be a list's comma.
_GROUP = re.compile(r"(?<=\d)(?:\{,\}|,\\!\s?|\\!,\s?|\\,|\\ |\\:|\\;|,\\ ?(?=\d))(?=\d{3}(?!\d))")
_LOOKS = re.compile(
    r"\\(?:left|right|middle|[bB]igg?[lrm]?|displaystyle|textstyle|scriptstyle|limits|nolimits|mathstrut|strut|hfill"
    r"|noindent|centering|large|Large|bf|rm|it|quad|qquad|thinspace|enspace|nonumber|hline|tag\{[^{}]{0,20}\})(?![a-zA-Z])"
    r"|(?<!\\)\\[,;: ]|~|\\hspace\*?\{[^{}]{0,20}\}"
)
_NARROW = re.compile(r"\\!")
_WRITTEN = re.compile(
    r"\\(?:text(?:normal|bf|it|rm|tt|sf|up|md|sc)?|math(?:rm|bf|it|sf|tt|up|cal|scr|frak)|mbox|hbox|operatorname\*?"
    r"|boldsymbol|bm|emph|underline|boxed|fbox|ensuremath)\s?\{([^{}]*)\}"
)
_UNITED = re.compile(r"[a-zA-Z]{2,}|^[a-zA-Z] ?/ ?[a-zA-Z]")
_FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp max min gcd lcm det".split()
)
_ONE_LETTER, _BEFORE_UNITS = frozenset("mgshlLNJWVK"), frozenset("0123456789}/")
"""Units of one letter behind a number; elsewhere a letter in \\text is itself."""
_SAME = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "le": "leq", "leqslant": "leq", "ge": "geq", "geqslant": "geq",
    "lt": "<", "gt": ">", "ne": "neq", "lbrace": "\\{", "rbrace": "\\}", "lbrack": "[", "rbrack": "]", "lparen": "(",
    "rparen": ")", "langle": "(", "rangle": ")", "dots": "ldots", "cdots": "ldots", "dotsc": "ldots", "dotsb": "ldots",
    "varnothing": "emptyset", "backslash": "setminus", "land": "text{and}", "wedge": "text{and}", "lor": "text{or}",
    "vee": "text{or}", "lvert": "|", "rvert": "|", "vert": "|", "mid": "|", "degree": "^{\\circ}", "colon": ":",
    "ast": "*", "thickapprox": "approx", "simeq": "approx", "to": "rightarrow", "varphi": "phi",
    "varepsilon": "epsilon", "dbinom": "binom", "tbinom": "binom", "lg": "log", "arccot": "operatorname{arccot}",
    "tg": "tan", "ctg": "cot",
}  # fmt: skip
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_PERCENT = re.compile(
    r"\\%|\\text\{\s*(?:percent(?:age)?s?|pct|per cent|\\?%)\s*\}|\b(?:percent(?:age)?s?|pct|per cent)\b"
)
_ASCII = (("<=", "\\leq "), (">=", "\\geq "), ("!=", "\\neq "), ("==", "="), ("~=", "\\approx "), ("...", "\\ldots "))
_INFINITE = re.compile(r"(?<![a-zA-Z\\])(?:infinity|inf|oo)(?![a-zA-Z])")
_BARE = re.compile(r"(?<![a-zA-Z\\])(pi|sqrt|theta|alpha|beta|cup|pm)(?![a-zA-Z])")
# Blanks are not given back (`*+`): neither a comma nor a word begins with one. Otherwise 500 blanks took four seconds.
# The clock of a slower machine made another reward of them.
_AND = re.compile(
    r"\s*+,?+\s*+(?:\\text\{\s*+,?+\s*+(?:and|or|And|Or|AND|OR)\s*+,?+\s*+\}|(?<![a-zA-Z\\])(?:and|or)(?![a-z]))"
    r"\s*+,?+\s*+"
)
_BLANKS = re.compile(r"\s+")
_DOLLARS = re.compile(r"\\\$ ?([0-9][0-9,]{0,40}(?:\.[0-9]{1,20})?)(?![0-9.]| ?\\text)")
_SUBSCRIPT = re.compile(r"_ ?([0-9]+|[a-zA-Z])(?![0-9}])")
_COUNTED = re.compile(r"([+-]?[0-9][0-9.,]{0,60}) ?([a-zA-Z][a-zA-Z ]{0,40})")
_GROUPED = re.compile(r"\s*[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?=(?:\.[0-9]{1,60})? ?(?:\\text|\\circ|%|[a-zA-Z]{2}))")
_DEGREES = re.compile(r"\^\s?(?:\{\s?\\circ\s?\}|\\circ)")
_ARGUMENTS = re.compile(r"\\(frac|binom|sqrt)(?![a-zA-Z])")
_POWER = re.compile(r"\^\s?(-?\d+)")
_ROUND_POWER = re.compile(r"\^\s?\(([^()]{1,100})\)")
_ROUND_ROOT = re.compile(r"\\sqrt\s?\(([^()]{1,100})\)")


def spelt(text: str) -> str:
    """A truth or an answer in one spelling."""
    text = _EMPHASIS.sub(r"\1", text.strip())
    number = _SCIENTIFIC.fullmatch(text)
    if number:
        return f"{number[1]} \\times 10^{{{int(number[2])}}}"
    # NFKC makes U+2212 of a raised minus, so the signs are replaced behind it once more.
    text = _RAISED.sub(lambda found: f"^{{{normalize('NFKC', found[0])}}}", text.translate(_SIGNS))
    text = _LOWERED.sub(lambda found: f"_{{{normalize('NFKC', found[0])}}}", text)
    text = normalize("NFKC", _ROOT.sub(lambda found: f"\\sqrt{{{found[1] or found[2]}}}", text)).translate(_SIGNS)
    if "\\begin" not in text:
        text = _DOUBLED.sub(r"\\", text)
    text = _GROUP.sub("", text)
    for ascii_, latex in _ASCII:
        text = text.replace(ascii_, latex)
    text = _COMMAND.sub(_named, _NARROW.sub("", _LOOKS.sub(" ", text)))
    # From the inside out, since the expression takes no braces in an argument. What is deeper stays as it is written.
    for _ in range(3):
        text = _WRITTEN.sub(_said, text)
    text = _DOLLARS.sub(r"\1 \\text{dollars}", text)
    text = _PERCENT.sub("%", text.replace("\\$", "").replace("$", ""))
    text = _SUBSCRIPT.sub(r"_{\1}", text)
    text = _AND.sub(",", _INFINITE.sub(r"\\infty ", _BARE.sub(r"\\\1 ", text)))
    text = _DEGREES.sub(r"\\circ ", text).replace("**", "^")
    text = _ROUND_ROOT.sub(r"\\sqrt{\1}", _ROUND_POWER.sub(r"^{\1}", _POWER.sub(r"^{\1}", text)))
    text = _braced(text)
    # 1,200 dollars is one number, as 1,200 is.
    grouped = _GROUPED.match(text)
    return trimmed(grouped[0].replace(",", "") + text[grouped.end() :] if grouped else text)


def trimmed(text: str) -> str:
    """Without blanks in a row, and the marks that end a sentence."""
    return _BLANKS.sub(" ", text).rstrip(" ,;:.").lstrip(" ,;:")


def _named(found: re.Match[str]) -> str:
    name = _SAME.get(found[1])
    if name is None:
        return found[0]
    # Behind what was a command may stand a letter.
    return f"\\{name} " if name[0].isalpha() and name[-1] != "}" else f"\\{name}" if name[0].isalpha() else name


def _said(found: re.Match[str]) -> str:
    """What stands in \\text{...}: words and units stay so, another letter or number is itself."""
    inner = found[1].strip()
    if inner in _FUNCTIONS:
        return f"\\{inner} "
    if counted := _COUNTED.fullmatch(inner):
        return f"{counted[1]} \\text{{{counted[2]}}}"
    before = found.string[: found.start()].rstrip()
    measured = (inner in _ONE_LETTER and before[-1:] in _BEFORE_UNITS) or (
        inner in ("C", "F") and "circ" in before[-6:]
    )
    if _UNITED.search(inner) or measured:
        return f"\\text{{{inner}}}"
    return f" {inner} " if inner else " "


def _braced(text: str) -> str:
    """\\frac12 as \\frac{1}{2}, \\sqrt3 as \\sqrt{3}."""
    parts, place = [], 0
    for found in _ARGUMENTS.finditer(text):
        if found.start() < place:
            continue
        parts.append(text[place : found.end()])
        place = found.end()
        for _ in range(1 if found[1] == "sqrt" else 2):
            while text[place : place + 1] == " ":
                place += 1
            # An argument in braces or brackets stays; what stands in it is met later.
            if text[place : place + 1] in ("{", "[", "\\", ""):
                break
            end = place + 1
            while found[1] == "sqrt" and text[place].isdigit() and text[end : end + 1].isdigit():
                end += 1  # \\sqrt13 is meant to be the root of 13
            parts.append(f"{{{text[place:end]}}}")
            place = end
    return "".join((*parts, text[place:]))
