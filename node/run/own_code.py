"""Code that a run file brings along: from what its owner wrote to MODULE:FUNCTION and a source file among the assets.

Written as "my_losses:clipped" or "lib/my_losses.py:clipped": a file beside the run file, or else an installed module.
Nothing is executed here; that the file is Python and has such a name is seen from its syntax. One that is not found
beside the run file is looked up as `import` would, which imports the packages above it.
"""

import ast
import difflib
import importlib.util
from pathlib import Path

from node.errors import RunFileError
from protocol.own_code import is_import_path, source_asset

# Parsing takes memory of many times the text.
MAX_SOURCE_BYTES = 1 << 20


def is_own(text: str) -> bool:
    """Whether a setting names a function of its owner's."""
    return ":" in text


def placed(text: str, base: Path) -> str:
    """The same reference, independent of where the run file lies: a file beside it by its real path."""
    where, _, function = text.rpartition(":")
    file = _beside(where, base) if is_own(text) else None
    return f"{file.absolute()}:{function}" if file else text


def compiled(text: str, run_file: Path, files: dict[str, Path]) -> str:
    """MODULE:FUNCTION as the run names it; its source goes into `files`. Text that is no reference stays as it is.

    Raises RunFileError for a file or function that is not there.
    """
    if not is_own(text):
        return text
    where, _, function = text.rpartition(":")
    beside = _beside(where, run_file.parent)
    source = beside or _installed(where, text, run_file)
    import_path = f"{source.stem if beside else where}:{function}"
    if not is_import_path(import_path):
        raise _unusable(run_file, f"{text!r} does not name a function", "write MODULE:FUNCTION, both plain names")
    _check_defines(source, function, text, run_file)
    asset = source_asset(import_path)
    if files.setdefault(asset, source).resolve() != source.resolve():
        raise _unusable(run_file, f"two modules are called {source.stem}", "rename one of them")
    return import_path


def _beside(where: str, base: Path) -> Path | None:
    """The file that is meant, if it is one: "lib/my.py" by its path, "my" or "lib.my" by its name."""
    file = base / (where if where.endswith(".py") else where.replace(".", "/") + ".py")
    # A path counts even where no file is: the error then names that file and not a module.
    return file if where and (where.endswith(".py") or file.is_file()) else None


def _installed(where: str, text: str, run_file: Path) -> Path:
    try:
        spec = importlib.util.find_spec(where)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise _unusable(
            run_file,
            f"{text!r}: there is no module {where!r}",
            f"put {where.replace('.', '/')}.py beside the run file, name its path (lib/{where}.py:...), or install it",
        )
    return Path(spec.origin)


def _check_defines(source: Path, function: str, text: str, run_file: Path) -> None:
    try:
        if source.stat().st_size > MAX_SOURCE_BYTES:
            raise ValueError(f"larger than {MAX_SOURCE_BYTES} bytes")
        # Parsed and not imported: looking at a run file must not run what it names.
        names = _names(ast.parse(source.read_bytes(), str(source)))
    except OSError as error:
        why = f"{text!r}: cannot read {source}: {error.strerror or error}"
        raise _unusable(run_file, why, "correct the path") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: it is nested too deeply
        raise _unusable(run_file, f"{text!r}: {source} is no Python: {error}", "correct the file") from None
    if function not in names and "*" not in names:
        close = difflib.get_close_matches(function, names, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(sorted(names)[:8]) or 'nothing'}"
        raise _unusable(run_file, f"{text!r}: there is no {function!r} in {source}", hint)


def _names(tree: ast.Module) -> set[str]:
    """What a module binds at its top level; "*" where it imports whatever another has."""
    found: set[str] = set()
    # `if` and `try` bind at the top level, too, so all of the tree is walked. A name of an inner function is one too
    # many; that is found when the function is loaded.
    for statement in ast.walk(tree):
        if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            found.add(statement.name)
        elif isinstance(statement, ast.Name) and isinstance(statement.ctx, ast.Store):
            found.add(statement.id)
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in statement.names}
    return found


def _unusable(run_file: Path, why: str, remedy: str) -> RunFileError:
    return RunFileError(f"unusable run file {run_file}", why, remedy)
