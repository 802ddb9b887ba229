"""`instruction_following`, `ifeval`: constraints that a program can check, in the words of IFEval (arXiv 2311.07911).

verification_info: {"instruction_id_list": [...], "kwargs": [{...}, ...]}. 1 if all are met. Not here: what needs a
guess at the language.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from node.environments.base import JSON_BRACKETS, nested_deeply
from node.environments.errors import nearest
from node.environments.task_types.base import Row, Truth, said

MAX_CONSTRAINTS = 32
MAX_CHARACTERS = 256 * 1024
Check = Callable[..., bool]
_WORD = re.compile(r"\w+")
_SENTENCE = re.compile(r"[.!?](?=\s|$)")
"""The last mark of each: an expression that takes all marks in a row tries every one of them as the first."""
_OPENED = re.compile(r"```(?:json)?\s*", re.IGNORECASE)


def words(text: str, num_words: int, relation: str) -> bool:
    return _compared(len(_WORD.findall(text)), num_words, relation)


def sentences(text: str, num_sentences: int, relation: str) -> bool:
    return _compared(len(_SENTENCE.findall(text)), num_sentences, relation)


def paragraphs(text: str, num_paragraphs: int) -> bool:
    """Divided by the line ***."""
    return len([part for part in re.split(r"\s?\*\*\*\s?", text) if part.strip()]) == num_paragraphs


def has_words(text: str, keywords: list[str]) -> bool:
    return all(_count(text, word) for word in keywords)


def frequency(text: str, keyword: str, frequency: int, relation: str) -> bool:
    return _compared(_count(text, keyword), frequency, relation)


def forbidden(text: str, forbidden_words: list[str]) -> bool:
    return not any(_count(text, word) for word in forbidden_words)


def letters(text: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    return _compared(text.lower().count(letter.lower()), let_frequency, let_relation)


def placeholders(text: str, num_placeholders: int) -> bool:
    # The class leaves out the opening mark, here and below. With `.*?` each mark that is never closed
    # searches to the end of the text, which takes quadratic time.
    return len(re.findall(r"\[[^\[\]]*\]", text)) >= num_placeholders


def postscript(text: str, postscript_marker: str) -> bool:
    return any(line.strip().lower().startswith(postscript_marker.lower()) for line in text.splitlines())


def bullets(text: str, num_bullets: int) -> bool:
    """Line by line: where an expression may take blanks over several lines, it takes them again from each of these."""
    starts = (line.lstrip()[:2] for line in text.split("\n"))
    return sum(two[:1] in ("*", "-") and two[1:] not in ("*", "-") for two in starts) == num_bullets


def highlights(text: str, num_highlights: int) -> bool:
    return len([one for one in re.findall(r"\*{1,2}([^\n*]+)\*{1,2}", text) if one.strip()]) >= num_highlights


def sections(text: str, section_spliter: str, num_sections: int) -> bool:
    return len(re.findall(rf"{re.escape(section_spliter.strip())}\s?\d+", text)) >= num_sections


def is_json(text: str) -> bool:
    """Fenced or bare, and not nested deeply."""
    text = text.strip()
    opened = _OPENED.match(text)
    text = text[opened.end() :] if opened else text
    text = text.removesuffix("```").rstrip()
    if nested_deeply(text, JSON_BRACKETS):
        return False
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def title(text: str) -> bool:
    return any(one.strip() for one in re.findall(r"<<([^\n<>]+)>>", text))


def choice(text: str, options: list[str] | None = None) -> bool:
    return any(one in text for one in options or ["My answer is yes.", "My answer is no.", "My answer is maybe."])


def upper(text: str) -> bool:
    return text.isupper()


def lower(text: str) -> bool:
    return text.islower()


def capitals(text: str, capital_frequency: int, capital_relation: str) -> bool:
    return _compared(sum(word.isupper() for word in _WORD.findall(text)), capital_frequency, capital_relation)


def ending(text: str, end_phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def quoted(text: str) -> bool:
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def no_comma(text: str) -> bool:
    return "," not in text


def repeats(text: str, prompt_to_repeat: str) -> bool:
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


def two_answers(text: str) -> bool:
    parts = [part.strip() for part in text.split("******")]
    return len(parts) == 2 and all(parts) and parts[0] != parts[1]


CHECKS: dict[str, Check] = {
    "keywords:existence": has_words,
    "keywords:frequency": frequency,
    "keywords:forbidden_words": forbidden,
    "keywords:letter_frequency": letters,
    "length_constraints:number_words": words,
    "length_constraints:number_sentences": sentences,
    "length_constraints:number_paragraphs": paragraphs,
    "detectable_content:number_placeholders": placeholders,
    "detectable_content:postscript": postscript,
    "detectable_format:number_bullet_lists": bullets,
    "detectable_format:number_highlighted_sections": highlights,
    "detectable_format:multiple_sections": sections,
    "detectable_format:json_format": is_json,
    "detectable_format:title": title,
    "detectable_format:constrained_response": choice,
    "change_case:english_capital": upper,
    "change_case:english_lowercase": lower,
    "change_case:capital_word_frequency": capitals,
    "startend:end_checker": ending,
    "startend:quotation": quoted,
    "punctuation:no_comma": no_comma,
    "combination:repeat_prompt": repeats,
    "combination:two_responses": two_answers,
}


def read_truth(info: Row, row: Row) -> Truth:
    """[[check, arguments], ...] as JSON."""
    names, settings = info.get("instruction_id_list"), info.get("kwargs")
    if not isinstance(names, list) or not 0 < len(names) <= MAX_CONSTRAINTS:
        raise ValueError(f"verification_info needs instruction_id_list: 1 to {MAX_CONSTRAINTS} constraints")
    settings = settings if settings is not None else [{}] * len(names)
    if not isinstance(settings, list) or len(settings) != len(names):
        raise ValueError("verification_info needs as many kwargs as constraints")
    return (json.dumps([_constraint(name, one) for name, one in zip(names, settings, strict=True)]),)


def _constraint(name: Any, settings: Any) -> tuple[str, dict[str, Any]]:
    """Raises ValueError for one that cannot be checked; it is tried once, on no answer."""
    if name not in CHECKS:
        raise ValueError(f"the constraint {str(name)[:80]!r} cannot be checked; {nearest(str(name), CHECKS)}")
    try:
        # Exports give each constraint the arguments of all others, as null.
        given = {key: value for key, value in (settings or {}).items() if value is not None}
        CHECKS[name]("", **given)
    except (TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"the constraint {name} has wrong arguments: {str(error)[:120]}") from None
    return name, given


def reward(answer: str, truth: Truth) -> float:
    """1 if the answer, without its reasoning, meets every constraint, else 0."""
    text = said(answer)
    if not text or len(text) > MAX_CHARACTERS:
        return 0.0
    return float(all(CHECKS[name](text, **given) for name, given in json.loads(truth[0])))


def _compared(count: int, wanted: int, relation: str) -> bool:
    relations = {"at least": count >= wanted, "less than": count < wanted, "at most": count <= wanted}
    relations |= {"exactly": count == wanted, "around": abs(count - wanted) <= max(round(wanted * 0.1), 1)}
    # Another relation is a KeyError, which `_constraint` makes a mistake of the row.
    return relations[relation]


def _count(text: str, word: str) -> int:
    return len(re.findall(rf"\b{re.escape(word)}\b", text, re.IGNORECASE))
