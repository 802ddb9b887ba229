"""Chat templates as programs: jinja as transformers runs it, without what differs from one reader to the next.

A prompt is made by the worker and made again by each validator, days later where there is a dispute, and must be the
same to the token. So the clock that templates may ask for stands still, nothing is drawn at random, and what is printed
is what every process prints alike. A template is a stranger's, too: `template_bounds` says what it may cost.

Every value that a template makes comes from an operator, a filter, a test, a method or a literal, and each of these is
paid for here before it happens. jinja2 works out constants while it compiles, where nothing would be paid for: not so
here.

Imports jinja2; whoever does not render imports `chat_template` alone.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Never, TypeVar

from jinja2 import TemplateError, meta, nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.utils import Namespace

from node.inference import template_bounds as bounds

T = TypeVar("T")
_DAY = {
    **{"%a": "Fri", "%A": "Friday", "%b": "Jul", "%h": "Jul", "%B": "July", "%d": "26", "%e": "26", "%-d": "26"},
    **{"%m": "07", "%-m": "7", "%y": "24", "%Y": "2024", "%j": "208", "%u": "5", "%w": "5", "%F": "2024-07-26"},
    **{"%D": "07/26/24", "%H": "00", "%-H": "0", "%I": "12", "%-I": "12", "%M": "00", "%S": "00", "%p": "AM"},
    **{"%T": "00:00:00", "%R": "00:00", "%f": "000000", "%Z": "", "%z": "", "%G": "2024", "%V": "30", "%%": "%"},
}
"""What day it is in every prompt, by its parts: the one that Llama's templates name themselves where they are told
none. The system's own words for it would depend on its language and time zone."""
MAX_SOURCE = 1 << 17
MAX_NODES = 1 << 14
MAX_NODES_DEEP = 100

_TEXT = frozenset(
    "capitalize e escape float format indent int lower replace safe string title trim truncate upper wordcount".split()
)
"""Filters that make text of what they are given."""
_GLANCE = frozenset({"abs", "attr", "count", "d", "default", "first", "last", "length", "round"})
"""Those that do not go through it."""
_WHOLE = frozenset(
    "dictsort items list map max min reject rejectattr reverse select selectattr sort sum unique".split()
)
_LOWERING = frozenset({"dictsort", "max", "min", "sort", "unique"})
"""Those that keep another form of each text that they compare."""
_COMPARING = frozenset({"in", "==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", "ge", ">=", "<", "lt"}) | {
    *{"lessthan", "<=", "le", "divisibleby"}
}
_TEXT_TESTS = frozenset({"lower", "upper"})
_BEFORE: Mapping[str, Callable[..., None]] = {
    "indent": bounds.pay_indent,
    "int": bounds.pay_number_of,
    "float": bounds.pay_number_of,
    "round": bounds.pay_round,
    "sum": bounds.pay_sum,
    "trim": lambda _, chars=None: bounds.pay_stripped(chars),
    "replace": lambda text, *args: bounds.pay_replaced(str(text), *args),
    "format": lambda text, *args, **named: bounds.before_binop("%", str(text), named or args),
}


class _Generation(Extension):
    """A tag around what the assistant says, of which transformers can make a mask; what is in it is said as it is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

    def _said(self, caller: Callable[[], str]) -> str:
        return caller()


class _Code(CodeGenerator):
    """The program of a template, with a call of the environment's wherever something is made."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        raise nodes.Impossible

    def _within(self, name: str, visit: Callable[..., None], *args: Any) -> None:
        self.write(f"environment.{name}(")
        visit(*args)
        self.write(")")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self._within("joined", super().visit_Tuple, nodes.Tuple(node.nodes, "load"), frame)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        self.write("(")
        self._within("weighed", self.visit, node.expr, frame)
        for operand in node.ops:
            self.visit(operand, frame)
        self.write(")")

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:
        self.write(f" {_OPERATORS[node.op]} ")
        self._within("weighed", self.visit, node.expr, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self.write("environment.sliced(")
        for part in (node.node, node.arg.start, node.arg.stop, node.arg.step):
            self.visit(part or nodes.Const(None), frame)
            self.write(", ")
        self.write(")")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._within("made", super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._within("made", super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._within("made", super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)


_OPERATORS = {
    **{"eq": "==", "ne": "!=", "gt": ">", "gteq": ">=", "lt": "<", "lteq": "<="},
    **{"in": "in", "notin": "not in"},
}


class _Environment(ImmutableSandboxedEnvironment):
    """jinja2's sandbox, in which everything is paid for."""

    code_generator_class = _Code
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)
    weighed = staticmethod(bounds.weighed)
    made = staticmethod(bounds.made)
    looped = staticmethod(bounds.looped)
    joined = staticmethod(bounds.joined)
    spend = staticmethod(bounds.spend)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > MAX_SOURCE:
            raise TemplateError(f"it has more than {MAX_SOURCE} characters")
        tree = super()._parse(source, name, filename)
        _check_size(tree)
        _add_prices(tree)
        return tree

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.spend(1)
        return _paid_for(super().getattr(obj, attribute))

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.spend(1)
        return _paid_for(super().getitem(obj, argument))

    def sliced(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        if isinstance(value, list | tuple):
            bounds.count(value)
        return bounds.result(value[start:stop:step])

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, type) or not super().is_safe_attribute(obj, attr, value):
            return False
        return not callable(value) or isinstance(obj, Namespace | LoopContext) or attr in bounds.methods_of(obj)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Never:
        raise SecurityError(f"access to attribute {attribute!r} of {type(obj).__name__!r} object is unsafe.")

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        text: str = value.__self__
        by_map = value.__name__ == "format_map"

        def formatted(*args: Any, **kwargs: Any) -> str:
            bounds.read(text)
            if by_map:
                (kwargs,), args = args, ()
            return type(text)(bounds.Formatter(self).vformat(text, args, kwargs))

        return formatted

    # Named as in jinja2: a template may pass arguments by any name, `self` and `context` among them.
    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        __self.spend(1 + len(args) + len(kwargs))
        if isinstance(__obj, LoopContext):
            args = tuple(map(bounds.looped, args))
        elif __obj is dict:
            bounds.weigh(args)
        with bounds.a_call():
            return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        bounds.before_binop(operator, left, right)
        return bounds.number(super().call_binop(context, operator, left, right))


def _paid_for(value: Any) -> Any:
    owner = getattr(value, "__self__", None)
    return bounds.bounded_method(value) if bounds.methods_of(owner) else value


def _check_size(tree: nodes.Template) -> None:
    waiting: list[tuple[nodes.Node, int]] = [(tree, 0)]
    seen = 0
    while waiting:
        node, deep = waiting.pop()
        seen += 1
        if isinstance(node, nodes.ScopedEvalContextModifier):
            raise TemplateError("it writes for HTML (autoescape)")
        if seen > MAX_NODES or deep > MAX_NODES_DEEP:
            raise TemplateError(f"it has more than {MAX_NODES} parts, or they are nested {MAX_NODES_DEEP} deep")
        waiting += ((child, deep + 1) for child in node.iter_child_nodes())


def _add_prices(tree: nodes.Template) -> None:
    """What a loop goes through is counted, and each turn of it and each call of a macro is paid for by its length."""
    for node in [*tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block))]:
        if isinstance(node, nodes.For):
            node.iter = _asked("looped", node.iter)
        parts = sum(1 for statement in node.body for _ in statement.find_all(nodes.Node))
        # Parts of a body that cost as much as one step.
        node.body.insert(0, nodes.ExprStmt(_asked("spend", nodes.Const(1 + parts // 64))).set_lineno(node.lineno))


def _asked(name: str, argument: nodes.Node) -> nodes.Expr:
    call = nodes.Call(nodes.EnvironmentAttribute(name), [argument], [], None, None)
    call.set_lineno(argument.lineno)
    return call


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As it stands: jinja2's own filter would write it for HTML."""
    bounds.pay_json(value, indent, separators)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@pass_context
def _join(context: Context, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    bounds.count(value)
    items = value if attribute is None else map(make_attrgetter(context.environment, attribute), value)
    return bounds.joined(items, str(bounds.printable(d)))


def _raise(message: str) -> Never:
    raise TemplateError(str(bounds.printable(message)))


def _now(form: str) -> str:
    bounds.read(form)
    said, at = [], 0
    while at < len(form):
        part = next((form[at : at + n] for n in (3, 2) if form[at : at + n] in _DAY), form[at])
        if part == "%":
            raise TemplateError(f"strftime_now is not told here what {form[at : at + 3]!r} is")
        said.append(_DAY.get(part, part))
        at += len(part)
    return bounds.joined(said)


@pass_context
def _printed(context: Context, value: Any) -> str:
    """With a context, so that jinja2 prints nothing while it compiles."""
    return bounds.as_text(value)


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """One of jinja2's filters, paid for before it runs and by what it gives."""
    passed = getattr(getattr(function, "jinja_pass_arg", None), "name", None)

    @pass_context
    def bounded(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        bounds.spend(1)
        for one in given:
            bounds.weigh(one)
            if isinstance(one, int) and abs(one) > bounds.MAX_TEXT and name not in ("d", "default"):
                raise TemplateError(f"it gives {name} a number above {bounds.MAX_TEXT}")
        if name in _TEXT:
            for one in (value, *given):
                bounds.printable(one)
            # A text is gone through once for each character of it that is a word.
            bounds.spend(len(value) // 4 if isinstance(value, str) and name in ("title", "wordcount") else 1)
        if name in _WHOLE:
            bounds.count(value)
        characters = 0 if name in _GLANCE else bounds.weigh(value)
        if name in _LOWERING:
            bounds.keep(characters)
        if name in _BEFORE:
            _BEFORE[name](value, *args, **kwargs)
        first = {"context": [context], "environment": [context.environment], "eval_context": [context.eval_ctx]}
        return bounds.result(function(*first.get(passed or "", ()), value, *args, **kwargs))

    return bounded


def _bounded_test(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    passed = getattr(function, "jinja_pass_arg", None) is not None

    @pass_context
    def bounded(context: Context, value: Any, *args: Any) -> Any:
        bounds.spend(1)
        if name in _COMPARING:
            bounds.weigh((value, args))
        elif name in _TEXT_TESTS:
            bounds.weigh(bounds.printable(value))
        elif name == "sameas" and not (args and isinstance(args[0], bool | None)):
            # Which equal texts and numbers are one object is up to the process.
            raise TemplateError("sameas compares with true, false or none here")
        return function(*([context.environment] if passed else []), value, *args)

    return bounded


_environment = _Environment(
    trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], optimized=False, finalize=_printed
)
_environment.filters = {name: _bounded_filter(name, FILTERS[name]) for name in sorted(_TEXT | _GLANCE | _WHOLE)}
_environment.filters |= {"tojson": pass_context(lambda _, *args, **named: _to_json(*args, **named)), "join": _join}
_environment.tests = {name: _bounded_test(name, test) for name, test in TESTS.items()}
_environment.globals = {
    **{"range": _environment.globals["range"], "dict": dict, "namespace": Namespace},
    **{"raise_exception": _raise, "strftime_now": _now},
}


class TemplateProgram:
    """A template, ready to be rendered. Whatever goes wrong in a stranger's program is a TemplateError: jinja2 catches
    nothing else, and programs divide by zero as others do. What goes wrong with this machine is none."""

    def __init__(self, text: str) -> None:
        self._template = _in_form(_environment.from_string, text)

    def render(self, **given: Any) -> str:
        """given: what the template may ask for by name. Raises TemplateError."""
        return _in_form(self._template.render, **given)


def compiled(text: str) -> TemplateProgram:
    """Raises TemplateError."""
    return TemplateProgram(text)


def names(text: str) -> set[str]:
    """What a template asks for by name and does not set itself. Raises TemplateError."""
    return _in_form(lambda: meta.find_undeclared_variables(_environment.parse(text)))


def _in_form(run: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    try:
        with bounds.a_rendering():
            return run(*args, **kwargs)
    # How much memory there is differs between machines, so it decides nothing: what a template costs is counted.
    except (TemplateError, MemoryError):
        raise
    except RecursionError:
        raise TemplateError("it is nested too deeply") from None
    except Exception as error:
        raise TemplateError(f"{type(error).__name__}: {str(error)[:200]}") from None
