"""Questions about the tests' source as a tree: each of its nodes is visited once, for every one that asks."""

from __future__ import annotations

import ast
import builtins
import importlib
import re
import sys
import types

BUILTIN_NAMES = frozenset(vars(builtins)) | {"__builtins__", "__name__"}
_MARKS = frozenset(
    kind
    for base in (ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop)
    for kind in base.__subclasses__()
)
_ODD_MODULES = frozenset(("__main__", "antigravity", "idlelib", "test", "this", "turtle", "turtledemo"))
_WORD = re.compile(r"[^\W\d]\w*")
_BY_TEXT = frozenset(("__builtins__", "__import__", "eval", "exec", "globals", "locals", "vars"))
"""Builtins by which a name can be looked up that does not stand in the source."""
_USUAL = frozenset(
    ("abs", "set", "sorted", "list", "tuple", "len", "str", "round", "isinstance", "int", "float", "dict", "all")
)


def nodes_of(*roots: ast.AST) -> list[ast.AST]:
    """All nodes, breadth first, but for the marks (``Load``, ``Add``, ``Eq``), the same objects everywhere."""
    found = list(roots)
    for node in found:  # grows as it goes
        for value in vars(node).values():
            if type(value) is list:
                found += [item for item in value if isinstance(item, ast.AST) and type(item) not in _MARKS]
            elif isinstance(value, ast.AST) and type(value) not in _MARKS:
                found.append(value)
    return found


def imports_of(tree: ast.Module) -> list[list[str | None]]:
    """The imports at the top level: module, name or None, alias or None."""
    found: list[list[str | None]] = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            found += [[name.name, None, name.asname] for name in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level and node.module != "__future__":
            found += [[node.module, name.name, name.asname] for name in node.names]
    return found


class Names:
    """What the names in a source are.

    Attributes:
        nodes: all of the source.
        bound: names that it binds, anywhere.
        free: names that it uses and binds nowhere.
        classes: whether it defines any.
    """

    def __init__(self, nodes: list[ast.AST]) -> None:
        self.nodes = nodes
        self.classes = False
        self.bound: set[str] = set()
        used: set[str] = set()
        for node in nodes:
            if isinstance(node, ast.Name):
                used.add(node.id)
                if not isinstance(node.ctx, ast.Load):
                    self.bound.add(node.id)
            elif isinstance(node, ast.arg):
                self.bound.add(node.arg)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.bound.add(node.name)
                self.classes = self.classes or isinstance(node, ast.ClassDef)
            elif isinstance(node, ast.ExceptHandler) and node.name:
                self.bound.add(node.name)
            elif isinstance(node, ast.alias):
                self.bound.add((node.asname or node.name).partition(".")[0])
        self.free = used - self.bound

    def unimported(self, entry_point: str | None) -> dict[str, types.ModuleType]:
        """Modules of the standard library that are used without being imported: by their names, and for nothing that
        such a module does not have."""
        used: dict[str, set[str]] = {}
        owners: set[int] = set()
        for node in self.nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used.setdefault(node.value.id, set()).add(node.attr)
                if isinstance(node.ctx, ast.Load):
                    owners.add(id(node.value))
        used = {name: used[name] for name in used.keys() & sys.stdlib_module_names}
        if not used:
            return {}
        bare = {node.id for node in self.nodes if isinstance(node, ast.Name) and id(node) not in owners}
        found: dict[str, types.ModuleType] = {}
        for name in used.keys() - self.bound - bare - _ODD_MODULES - {(entry_point or "").partition(".")[0]}:
            try:
                module = importlib.import_module(name)
            except ImportError:
                continue
            if all(hasattr(module, attribute) for attribute in used[name]):
                found[name] = module
        return found

    def could_mean(self, prelude: str, entry_point: str | None) -> bool:
        """Whether a name in the source may be something of the problem's own text, beside the entry point. Most tests
        use nothing of it, and it need not be parsed."""
        wanted = self.free - {(entry_point or "").partition(".")[0]}
        return bool(wanted & _BY_TEXT) or not wanted.isdisjoint(_WORD.findall(prelude))

    def shadowed(self, entry_point: str | None) -> frozenset[str]:
        """Builtin names that mean the candidate's function: the entry point, or, where the tests name nothing else that
        they do not define, the first such name that they call."""
        if entry_point is not None:
            return frozenset((entry_point.partition(".")[0],)) & BUILTIN_NAMES
        if self.free - BUILTIN_NAMES:
            return frozenset()
        # Every builtin that all of the tests call might be it; the least usual around a call is taken.
        calls = [n.func.id for n in self.nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
        return frozenset([name for name in calls if name not in _USUAL][:1] or calls[:1])


def names_in_classes(node: ast.stmt) -> list[str]:
    """Names in the bodies of classes."""
    classes = [inner for inner in nodes_of(node) if isinstance(inner, ast.ClassDef)]
    return [name.id for inner in classes for name in nodes_of(inner) if isinstance(name, ast.Name)]


def future_flags(tree: ast.Module) -> int:
    """What ``from __future__ import`` asks of the compiler."""
    flags = 0
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            for name in node.names:
                feature = getattr(__import__("__future__"), name.name, None)
                flags |= feature.compiler_flag if feature is not None else 0
    return flags
