"""What the verifier's own process wants to know of program text: does it parse, what does it define.

Programs are only parsed here, never compiled or run, and only within :data:`PARSE_BUDGET` and :data:`MAX_NESTING`, for
the text is hostile: what lies beyond counts as not parsing, which only affects the choice among several blocks.
"""

from __future__ import annotations

import ast
import builtins
import re
import threading
import warnings
from collections.abc import Iterable, Iterator
from typing import Final

PARSE_BUDGET: Final = 256 * 1024
"""Characters that are parsed per completion."""
MAX_NESTING: Final = 90
"""Brackets open at once in what is parsed."""

_BRACKET: Final = re.compile(r"[()\[\]{}]")
_CLOSING: Final = frozenset(")]}")
_CODE_LINE: Final = re.compile(
    r"(?:async[ \t]+)?def[ \t]+\w+[ \t]*[(\[]|class[ \t]+\w+[ \t]*[(:\[]"
    r"|import[ \t]+[\w.]+(?:[ \t]+as[ \t]+\w+)?(?:[ \t]*,[ \t]*[\w.]+)*[ \t]*(?:#.*)?$"
    r"|from[ \t]+[\w.]+[ \t]+import\b|@\w[\w.]*[ \t]*(?:\(.*)?$"
    r"|if[ \t]+__name__[ \t]*==|print[ \t]*\(|(?:for|while)\b.*:[ \t]*(?:#.*)?$"
    r"|[A-Za-z_]\w*(?:[ \t]*,[ \t]*\w+)*[ \t]*[-+*/%|&^]?=[ \t]*[^=\s]",
)
_BUILTIN_NAMES: Final = frozenset(dir(builtins))
_warnings_lock: Final = threading.Lock()


class Parser:
    """Parses within the budget of one completion, each text once."""

    def __init__(self, budget: int = PARSE_BUDGET) -> None:
        self._left = budget
        self._trees: dict[str, ast.Module | None] = {}

    def parse(self, source: str) -> ast.Module | None:
        """The syntax tree; None when it does not parse, or must not be tried."""
        if source in self._trees:
            return self._trees[source]
        if len(source) > self._left:
            return None
        self._left -= len(source) + 64
        tree = None if _too_nested(source) else _parse(source)
        self._trees[source] = tree
        return tree


def _parse(source: str) -> ast.Module | None:
    with _warnings_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Python warns of is the candidate's business
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
            return None


def _too_nested(source: str) -> bool:
    depth = 0
    for found in _BRACKET.finditer(source):
        if found[0] in _CLOSING:
            depth = max(0, depth - 1)
        else:
            depth += 1
            if depth > MAX_NESTING:
                return True
    return False


def looks_like_code(line: str) -> bool:
    """Whether a line, without its indentation, begins as Python does and prose does not."""
    return _CODE_LINE.match(line) is not None


def top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when the module is loaded, those inside ``if``, ``try``, ``with``, loops and so on too."""
    # Without recursion: a chain of ``elif`` is as deep as it is long.
    waiting = list(body)[::-1]
    while waiting:
        statement = waiting.pop()
        yield statement
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = [part for name in ("body", "orelse", "finalbody") for part in getattr(statement, name, ())]
            inner += [part for handler in getattr(statement, "handlers", ()) for part in handler.body]
            inner += [part for case in getattr(statement, "cases", ()) for part in case.body]
            waiting += inner[::-1]


def binds(statement: ast.stmt) -> set[str]:
    """Names that one statement binds, those inside it left out."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {statement.name}
        case ast.Import() | ast.ImportFrom():
            return {(alias.asname or alias.name).split(".")[0] for alias in statement.names}
        case ast.Assign():
            return {name for target in statement.targets for name in _stored(target)}
        case ast.AnnAssign() | ast.AugAssign() | ast.For() | ast.AsyncFor():
            bare = isinstance(statement, ast.AnnAssign) and statement.value is None
            return set() if bare else set(_stored(statement.target))
    return set()


def _stored(target: ast.expr) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def defines(tree: ast.Module, name: str) -> int:
    """How ``name`` is bound at the top level: 3 as a function or class, 2 as another value, 1 by what stands in for it
    (an import, a stub, a constant) or uses it (``total = total(xs)``), 0 not at all."""
    return max(
        (_definition(statement, name) for statement in top_level(tree.body) if name in binds(statement)), default=0
    )


def _definition(statement: ast.stmt, name: str) -> int:
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return 1 if _is_stub(statement) else 3
        case ast.ClassDef():
            return 3
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            if any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(value)):
                return 1
            if isinstance(value, ast.Lambda | ast.Attribute | ast.Name):
                return 3
            return 1 if isinstance(value, ast.Constant) else 2
    return 1


def _is_stub(statement: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether it is a function whose body was left out."""
    return all(_is_nothing(item) for item in statement.body)


def _is_nothing(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Expr(ast.Constant()):
            return True
        case ast.Return(ast.Constant(value)):
            return value is ...
        case ast.Raise(ast.Name("NotImplementedError") | ast.Call(ast.Name("NotImplementedError"))):
            return True
    return False


def seems_to_define(source: str, name: str) -> bool:
    """The same for text that does not parse."""
    word = re.escape(name)
    return (
        re.search(rf"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+{word}\b|^{word}[ \t]*=(?!=)", source, re.M) is not None
    )


def has_effect(statement: ast.stmt) -> bool:
    """Whether leaving the statement out could change anything: a word of prose often is an expression."""
    if isinstance(statement, ast.Expr):
        calls = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
        return any(isinstance(node, calls) for node in ast.walk(statement))
    return not (isinstance(statement, ast.Pass) or (isinstance(statement, ast.AnnAssign) and statement.value is None))


def is_program(tree: ast.Module) -> bool:
    """Whether anything in it does something."""
    return any(has_effect(statement) for statement in tree.body)


_READING: Final = frozenset(("input", "stdin", "open", "fileinput"))
_WRITING: Final = frozenset(("print", "pprint", "stdout", "write", "writelines"))


def wholeness(tree: ast.Module) -> int:
    """How much a snippet looks like a whole program: 4 reads and writes, 3 writes, 2 reads, 1 is in want of names that
    it does not define (a usage of what stands elsewhere), 0 neither reads nor writes."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    reads, writes = bool(used & _READING), bool(used & _WRITING)
    if not (reads or writes) or not is_program(tree):
        return 0
    aliases = (node for node in ast.walk(tree) if isinstance(node, ast.alias))
    if free_names(tree) and not any(alias.name == "*" for alias in aliases):
        return 1
    return 1 + reads + 2 * writes


def free_names(tree: ast.Module) -> set[str]:
    """Names that are read somewhere and bound nowhere, builtins left out."""
    read: set[str] = set()
    bound: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(ctx=ast.Load()):
                read.add(node.id)
            case ast.Name():
                bound.add(node.id)
            case ast.arg():
                bound.add(node.arg)
            case ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case ast.stmt():
                bound |= binds(node)
    return read - bound - _BUILTIN_NAMES


def dedented(code: str) -> str:
    """Without the indentation of the first line, where every line has it."""
    first = first_line(code)
    indent = first[: len(first) - len(first.lstrip(" \t"))]
    return "\n".join(line.removeprefix(indent) for line in code.split("\n"))


def first_line(code: str) -> str:
    """The first line that is not blank, with its indentation."""
    return next((line for line in code.split("\n") if line.strip()), "")


def lines_of(source: str, statement: ast.stmt) -> str:
    """The source lines of a statement, with its decorators."""
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(item.lineno for item in decorators)])
    return "\n".join(source.split("\n")[first - 1 : statement.end_lineno])


def split_future(source: str, tree: ast.Module) -> tuple[str, str]:
    """``from __future__`` imports, and the rest with blank lines in their place."""
    lines = source.split("\n")
    taken: list[str] = []
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            taken += lines[statement.lineno - 1 : statement.end_lineno]
            for number in range(statement.lineno - 1, statement.end_lineno or statement.lineno):
                lines[number] = ""
    return "\n".join(taken), "\n".join(lines)
