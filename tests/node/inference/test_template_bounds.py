"""A chat template is a stranger's program: what it may cost, what it may print, and that it prints it everywhere."""

import itertools
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from jinja2 import TemplateError

from node.inference import template_bounds as bounds
from node.inference.template_language import _environment, compiled

TALK = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
GROWS = "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(60) %}"
COSTLY = {
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a loop whose turns are all left out": "{% for a in range(99999) if false %}{% endfor %}" * 100,
    "a long text in a loop": "{% for a in range(99999) %}" + "x" * 100_000 + "{% endfor %}",
    "a long body in a loop": "{% for i in range(99999) %}" + "{% set a = i %}" * 2000 + "{% endfor %}",
    "a long macro": "{% macro m() %}"
    + "{% set a = 1 %}" * 3000
    + "{% endmacro %}{% for i in range(99999) %}{{ m() }}{% endfor %}",
    "lists in the source": "{% set n = namespace(x=1) %}{% for i in range(9999) %}{% set n.x = [n.x, "
    + "1," * 9999
    + "] %}{% endfor %}",
    "a macro without end": "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    "a loop in itself": GROWS
    + "{% set n.x = [n.x, n.x] %}{% endfor %}{% for a in n.x recursive %}{{ loop(a) }}{% endfor %}",
    "text times a number": "{{ 'a' * 10000000000 }}",
    "a number times text": "{{ 10000000000 * 'a' }}",
    "a list times a number": "{{ ([1] * 10000000000) | length }}",
    "a power": "{{ 10 ** 1000000000 }}",
    "a power of powers": "{{ 10 ** 18 * 10 ** 18 }}",
    "text that doubles": GROWS + "{% set n.x = n.x ~ n.x %}{% endfor %}".replace("n.x", "n.x | join") + "{{ n.x }}",
    "a list that doubles": GROWS + "{% set n.x = n.x + n.x %}{% endfor %}",
    "a tree that is compared": GROWS
    + "{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}{% endfor %}{{ n.x == n.y }}",
    "a tree as JSON": GROWS + "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}",
    "a wide field": "{{ '%1000000000d' % 1 }}",
    "a width that is given": "{{ '%*d' % (1000000000, 1) }}",
    "many places": "{{ '%.1000000000f' % 1.0 }}",
    "a wide field of format": "{{ '{:1000000000}'.format(1) }}",
    "a width within a width": "{{ '{:{}}'.format(1, 1000000000) }}",
    "a wide field of the filter": "{{ '%1000000000d' | format(1) }}",
    "JSON with room": "{{ [[[1]]] | tojson(indent=1000000000) }}",
    "fields without end": "{{ ('%(' * 2000000) % {'a': 1} }}",
    "braces without end": "{{ ('{}' * 2000000).format(1) }}",
    "braces in a field": "{{ ('{0' ~ '.a' * 1000000 ~ '}').format(1) }}",
    "letters for letters": "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
    "letters between letters": "{{ ('a' * 1000000) | replace('', 'b' * 1000000) }}",
    "lines that move": "{{ ('\\n' * 1000000) | indent(1000000) }}",
    "a search from the end": "{{ ('a' * 4000000).rfind('b' + 'a' * 2000000) }}",
    "a search in equal texts": "{{ ('a' * 1000000 ~ 'b') in ['a' * 1000000 ~ 'c'] * 100000 }}",
    "texts that are kept": "{% set n = namespace(x=[]) %}"
    "{% for i in range(99) %}{% set n.x = n.x + ['a' * 1000000 ~ i] %}{% endfor %}",
    "sums of lists": "{{ ([[1] * 1000] * 1000) | sum(start=[]) }}",
    "a long program": "x" * 10_000_000,
    "brackets": "{{ " + "(" * 3000 + ")" * 3000 + " }}",
    "loops that are nested": "{% for a in [1] %}" * 50 + "{% endfor %}" * 50,
    "not not": "{{ " + "not " * 20_000 + "1 }}",
    "a number of many digits": "{{ " + "9" * 10_000 + " }}",
    "digits that are read": "{{ ('9' * 1000) | int }}",
}
ELSEWHERE_OTHERWISE = {
    "a function": "{{ range }}",
    "a method": "{{ 'a'.upper }}",
    "a method of a message": "{{ messages[0].items }}",
    "a macro": "{% macro a() %}{% endmacro %}{{ a }}",
    "who calls": "{% macro a() %}{{ caller }}{% endmacro %}{% call a() %}x{% endcall %}",
    "a namespace": "{{ namespace() }}",
    "a loop": "{% for m in messages %}{{ loop }}{% endfor %}",
    "the template": "{{ self }}",
    "a generator": "{{ messages | select }}",
    "a list": "{{ messages }}",
    "a mapping": "{{ messages[0] }}",
    "keys": "{{ messages[0].keys() }}",
    "a class": "{{ ''.__class__ }}",
    "a class in a format": "{{ '{0.__class__}'.format(1) }}",
    "what is undefined, within": "{{ nothing.__class__ }}",
    "a hash": "{{ ''.__hash__() }}",
    "what is the same object": "{{ 'a' is sameas 'a' }}",
    "seconds since 1970 in a time zone": "{{ strftime_now('%s') }}",
    "a date in a language": "{{ strftime_now('%c') }}",
    "a power of a fraction": "{{ 2 ** 0.5 }}",
    "a power that is a fraction": "{{ 2 ** -1 }}",
    **{
        f"a function by way of {way}": "{{ " + way + " }}"
        for way in (
            *("range | string", "range | upper", "range | safe", "range | e", "[range] | join", "'a' ~ range"),
            *("'%s' % range", "'%r' % range", "'%(a)s' % {'a': range}", "'%s' | format(range)", "'{}'.format(range)"),
            *("'{!r}'.format(range)", "'{a}'.format_map({'a': range})", "'a' | replace('a', range)", "dict['x']"),
            *("messages | attr('index')", "[[1]] | map('attr', 'index') | join", "range | tojson"),
        )
    },
}
FINE = {
    "a loop": "{% for m in messages %}{{ m.role }}:{{ m.content | trim }}\n{% endfor %}",
    "numbers, booleans and nothing": "{{ 1 + 1 }} {{ 0.5 }} {{ true }} {{ none }} {{ nothing }}|",
    "a method": "{{ 'a'.upper() }}{{ 'a,b'.split(',')[-1] }}{{ ' a '.strip() }}",
    "a format": "{{ '%3d' % 5 }}{{ '{:>4}'.format('x') }}{{ '%s' | format('y') }}",
    "a macro": "{% macro a(n) %}{{ n }}{% if n %}{{ a(n - 1) }}{% endif %}{% endmacro %}{{ a(9) }}",
    "a generator": "{% set s = messages | selectattr('role', 'eq', 'user') %}{{ s | list | length }}{{ s | first }}",
    "times": "{{ '-' * 100 }}{{ 2 ** 10 }}{{ [0] * 3 == [0, 0, 0] }}",
    "json": "{{ messages | tojson(indent=2) }}",
    "what is defined": "{{ nothing is defined }}{{ messages[0].name is defined }}{{ messages[0].get('name', 'n') }}",
    "the same": "{{ true is sameas true }}{{ none is sameas false }}",
}  # fmt: skip


def render(template: str) -> str:
    return compiled(template).render(messages=TALK)


def compiled_or_refused(template: str) -> Callable[..., str]:
    try:
        return compiled(template).render
    except TemplateError as error:
        raised = error

    def refused(**_: object) -> str:
        raise raised

    return refused


@pytest.mark.parametrize("template", COSTLY.values(), ids=COSTLY)
def test_a_template_that_takes_too_much_ends_before_it_has_taken_it(template: str) -> None:
    program = compiled_or_refused(template)
    tracemalloc.start()
    try:
        with pytest.raises(TemplateError):
            program(messages=TALK)
        assert tracemalloc.get_traced_memory()[1] < 2 * bounds.MAX_MADE
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("template", ELSEWHERE_OTHERWISE.values(), ids=ELSEWHERE_OTHERWISE)
def test_what_another_process_may_print_otherwise_is_not_printed(template: str) -> None:
    with pytest.raises(TemplateError):
        render(template)


@pytest.mark.parametrize("template", FINE.values(), ids=FINE)
def test_the_control_is_rendered_as_jinja_does(template: str) -> None:
    from transformers.utils.chat_template_utils import _compile_jinja_template

    assert render(template) == _compile_jinja_template(template).render(messages=TALK) != ""


def every_operation() -> Iterator[str]:
    """Every filter, method and test that there is, of v, with none, one and two arguments."""
    for given in ("", "(a)", "(a, b)"):
        yield from (f"v | {name}{given}" for name in _environment.filters)
        yield from (f"v.{name}{given or '()'}" for name in sorted(set().union(*bounds.METHODS.values())))
        yield from (f"v is {name}{given}" for name in _environment.tests if not given.count(","))


def test_no_operation_takes_more_than_is_left_or_prints_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """What jinja2 adds one day is tried on that day: filters and tests are read off the environment."""
    for name, shift in (("MAX_STEPS", 10), ("MAX_TEXT", 7), ("MAX_MADE", 7)):
        monkeypatch.setattr(bounds, name, getattr(bounds, name) >> shift)
    room = 4 * bounds.MAX_MADE  # a character may need four bytes
    values = ("a b" * 8_000, "9" * 5_000, ["a" * 5_000] * 20, TALK, -9, range)
    arguments = (10_000_000_000, "a" * 8_000, "")
    done, refused = 0, 0
    for expression in every_operation():
        try:
            template = compiled("{% set x = " + expression + " %}{{ x if x is string or x is number else '-' }}").render
        except TemplateError:  # jinja2's own names for some tests are operators
            continue
        tracemalloc.start()
        for v, a in itertools.product(values, arguments if "(a" in expression else [None]):
            for b in arguments if ", b" in expression else [None]:
                try:
                    said = template(v=v, a=a, b=b)
                    done += 1
                    assert len(said) <= bounds.MAX_TEXT and " at 0x" not in said, expression
                except TemplateError:
                    refused += 1
        assert tracemalloc.get_traced_memory()[1] < room, expression
        tracemalloc.stop()
    assert done > 300 and refused > 300


@pytest.mark.parametrize("when", ["compiled", "rendered"])
def test_how_much_memory_this_machine_has_says_nothing_of_a_template(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object, **__: object) -> str:
        raise MemoryError

    program = compiled("{{ messages[0].content }}")
    if when == "compiled":
        monkeypatch.setattr(_environment, "from_string", gone)
    else:
        monkeypatch.setattr(bounds, "as_text", gone)
    with pytest.raises(MemoryError):
        _ = compiled("x") if when == "compiled" else program.render(messages=TALK)
    monkeypatch.undo()
    with pytest.raises(TemplateError):
        program.render(messages=[])


def test_a_macro_that_calls_itself_twice_ends() -> None:
    with pytest.raises(TemplateError, match="steps"):
        render("{% macro a(n) %}{% if n %}{{ a(n-1) }}{{ a(n-1) }}{% endif %}{% endmacro %}{{ a(40) }}")


def test_steps_are_counted_alike_wherever_a_template_is_rendered_from() -> None:
    """How deep Python is when it renders is the caller's affair, not the template's."""
    template = compiled("{% macro a(n) %}{{ n }}{% if n %}{{ a(n - 1) }}{% endif %}{% endmacro %}{{ a(40) }}").render

    def deep(levels: int) -> str:
        return deep(levels - 1) if levels else template()

    assert deep(0) == deep(100) == "".join(map(str, range(40, -1, -1)))
