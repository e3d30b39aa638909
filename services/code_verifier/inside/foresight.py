"""Calls that tests are certain to make, found before they run, so that they cross in one message instead of many.

Only what can make no difference is foreseen: asserts one behind the other, every call of the program's function with
literal arguments, and around it only comparisons, arithmetic, displays and a few builtins, so that nothing is evaluated
by turns or left out. The candidate then does the calls in the order of the tests, and each answer is believed or not
when its call is made: see :meth:`JudgePeer.foresee`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .syntax import nodes_of

Arguments = tuple[object, ...]

_PURE = frozenset(
    kind.__name__
    for kind in (abs, dict, float, frozenset, int, len, list, max, min, round, set, sorted, str, sum, tuple)
)
LIMIT = 200
"""Calls that are foreseen at most."""


def calls_of(statements: Iterable[ast.stmt], name: str) -> list[Arguments]:
    """Arguments of the calls of ``name`` in the leading statements that are simple asserts."""
    found: list[list[ast.expr]] = []
    for statement in statements:
        if isinstance(statement, ast.Pass) or _is_text(statement):
            continue
        calls: list[list[ast.expr]] = []
        if not isinstance(statement, ast.Assert) or not _visit(statement.test, name, calls):
            break
        if len(found) + len(calls) > LIMIT:
            break
        found += calls
    return _evaluated(found)


def _evaluated(calls: list[list[ast.expr]]) -> list[Arguments]:
    """The arguments, as the compiler makes them: equal tuples of constants in a call are one object, and are sent as
    one."""
    place = {"lineno": 1, "col_offset": 0, "end_lineno": 1, "end_col_offset": 0}
    row = ast.List([ast.Tuple(arguments, ast.Load(), **place) for arguments in calls], ast.Load(), **place)
    try:
        code = compile(ast.Expression(row), "<calls>", "eval")
        made: list[Arguments] = eval(code, {"__builtins__": {"set": set}})  # noqa: S307 - literals of the tests
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return []
    return made


def checked_by(statement: ast.stmt, tree: ast.Module) -> tuple[str, list[Arguments]] | None:
    """Of a statement ``check(function)``: the function's name, and what a ``check`` of simple asserts calls it with."""
    match statement:
        case ast.Expr(ast.Call(ast.Name(check), [ast.Name(target)], [])):
            pass
        case _:
            return None
    definitions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == check]
    if len(definitions) != 1 or definitions[0].decorator_list:
        return None
    match definitions[0].args:
        case ast.arguments([], [ast.arg(parameter)], None, [], [], None, []):
            return target, calls_of(definitions[0].body, parameter)
    return None


def calls_at(tree: ast.Module, number: int) -> tuple[str, list[Arguments], int] | None:
    """What the tests call from statement ``number`` on, with what, and how many statements that covers."""
    node = tree.body[number]
    checked = checked_by(node, tree)
    if checked is not None:
        return *checked, 1
    name = called_first(node)
    if name is None:
        return None
    rest = tree.body[number:]
    covered = next((n for n, statement in enumerate(rest) if not isinstance(statement, ast.Assert)), len(rest))
    return name, calls_of(rest, name), covered


def opening(tree: ast.Module) -> tuple[str, list[Arguments], int] | None:
    """What the tests call first of all, with what, and the first statement that this does not cover. Before it there
    is only what does nothing to the program or to the tests' calls: imports, functions, literals."""
    for number, node in enumerate(tree.body):
        if not _is_inert(node):
            found = calls_at(tree, number)
            return (found[0], found[1], number + found[2]) if found is not None else None
    return None


def _is_inert(node: ast.stmt) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Expr(ast.Constant()):
            return True
        case ast.FunctionDef(decorator_list=[], returns=None, args=arguments):
            annotated = any(argument.annotation for argument in nodes_of(arguments) if isinstance(argument, ast.arg))
            return not annotated and not arguments.defaults and not any(arguments.kw_defaults)
        case ast.Assign([ast.Name()], value):
            return _visit(value, "", [])
    return False


def called_first(statement: ast.stmt) -> str | None:
    """The one name that an assert calls beside the known builtins."""
    if not isinstance(statement, ast.Assert):
        return None
    nodes = nodes_of(statement.test)
    names = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)} - _PURE
    return names.pop() if len(names) == 1 else None


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _visit(node: ast.expr, name: str, calls: list[list[ast.expr]]) -> bool:
    """Collect calls in the order of their evaluation; false where that is not certain."""
    match node:
        case ast.Constant():
            return True
        case ast.UnaryOp(_, operand):
            return _visit(operand, name, calls)
        case ast.BinOp(left, _, right) | ast.Compare(left, [_], [right]):
            return _visit(left, name, calls) and _visit(right, name, calls)
        case ast.List(items) | ast.Tuple(items) | ast.Set(items):
            return all(_visit(item, name, calls) for item in items)
        case ast.Dict(keys, items):
            pairs = zip(keys, items, strict=True)
            return all(k is not None and _visit(k, name, calls) and _visit(v, name, calls) for k, v in pairs)
        case ast.Subscript(value, key):
            return _visit(value, name, calls) and _visit(key, name, calls)
        case ast.Call(ast.Name(function), arguments, []) if function == name:
            calls.append(arguments)
            return all(map(_is_literal, arguments))
        case ast.Call(ast.Name(function), arguments, []) if function in _PURE:
            return all(_visit(argument, name, calls) for argument in arguments)
    return False


def _is_literal(node: ast.expr | None) -> bool:
    match node:
        case ast.Constant():
            return True
        case ast.List(items) | ast.Tuple(items) | ast.Set(items):
            return all(map(_is_literal, items))
        case ast.Dict(keys, items):
            return all(map(_is_literal, keys)) and all(map(_is_literal, items))
        case ast.UnaryOp(ast.USub() | ast.UAdd(), ast.Constant(int() | float() | complex())):
            return True
        case ast.BinOp(left, ast.Add() | ast.Sub(), ast.Constant(complex())):  # 1 + 2j
            return _is_literal(left) and not isinstance(left, ast.BinOp)
        case ast.Call(ast.Name("set"), [], []):
            return True
    return False
