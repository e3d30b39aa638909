"""From a completion and its problem's tests to a job for the sandbox.

Tests are looked at before anything is run: those that cannot be used are the problem's fault, so they make a
:class:`BadTests`, never a score.
"""

from __future__ import annotations

import ast
import builtins
import json
import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, cast, get_args

from code_verifier.extract import extract
from code_verifier.job import AssertTests, CallTests, Case, Checker, Job, StdioTests, Tests
from gristmill.errors import BadInput
from gristmill.messages import CodeTests, TestCase

KINDS = ("assert", "call", "stdio")
CALL_TOLERANCE: Final = 1e-6
"""By how much numbers may differ in tests of kind call whose checker is ``float``."""
MAX_CASES: Final = 10_000
"""Cases of one problem."""


class BadTests(BadInput):
    """Tests that no program can be run against; the message says what is wrong with them."""


@dataclass(frozen=True, slots=True)
class Task:
    """A completion, ready to be run.

    Attributes:
        job: None when the completion holds no program.
        program: the program as taken from the completion, with what it needs of the prompt in front.
        how: the rule that found it.
        seconds: what finding it took.
    """

    job: Job | None
    program: str | None
    how: str
    seconds: float


def make_task(tests: CodeTests, text: str, *, stop_at_first_failure: bool = True) -> Task:
    """Take the program out of ``text`` and put it together with its tests.

    Raises:
        BadTests: the tests cannot be used.
    """
    start = time.perf_counter()
    checked = read_tests(tests)
    entry_point = None if tests.kind == "stdio" else tests.entry_point or called_name(tests.source)
    try:
        program = extract(text, entry_point=entry_point, prompt=tests.prompt)
    except (RecursionError, MemoryError, ValueError):
        # Text that is too much for a search in it is no reason for the verifier to end, which would meet it again.
        program = None
    seconds = time.perf_counter() - start
    if program is None:
        return Task(None, None, "", seconds)
    job = Job(program.source, checked, stop_at_first_failure, tests.time_limit_s)
    return Task(job, program.source, program.how, seconds)


@lru_cache(maxsize=64)
def read_tests(tests: CodeTests) -> Tests:
    """The tests in the sandbox's words.

    Raises:
        BadTests: they cannot be used; the message says why.
    """
    if tests.kind not in KINDS:
        raise BadTests(f"no tests of kind {tests.kind!r}; there are {', '.join(KINDS)}")
    if tests.checker not in get_args(Checker):
        raise BadTests(f"no checker {tests.checker!r}; there are {', '.join(get_args(Checker))}")
    limit = tests.time_limit_s
    if limit is not None and not (math.isfinite(limit) and limit > 0):
        raise BadTests(f"the time limit {limit} is not a number of seconds above 0")
    entry_point = None if tests.entry_point is None else tests.entry_point.replace("()", "")
    if entry_point is not None and not all(part.isidentifier() for part in entry_point.split(".")):
        raise BadTests(f"the entry point {tests.entry_point!r} is not a name")
    match tests.kind:
        case "assert":
            if not tests.source.strip():
                raise BadTests("tests of kind assert without a source")
            _compile(tests.source, "the tests")
            return AssertTests(tests.source, entry_point, tests.prompt or "")
        case "call":
            if entry_point is None:
                raise BadTests("tests of kind call without an entry point")
            for number, case in enumerate(tests.cases):
                if not isinstance(_json(case.input, f"case {number}: input"), list):
                    raise BadTests(f"case {number}: the input of a call must be a JSON array of its arguments")
                _json(case.expected, f"case {number}: expected value")
            tolerance = CALL_TOLERANCE if tests.checker == "float" else 0.0
            return CallTests(entry_point, _cases(tests.cases), tolerance)
        case "stdio":
            return _stdio(tests)


def _stdio(tests: CodeTests) -> StdioTests:
    checker = cast(Checker, tests.checker)
    if checker != "custom":
        return StdioTests(_cases(tests.cases), checker)
    source = tests.checker_source or ""
    tree = _compile(source, "the checker")
    if not any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in ast.walk(tree)):
        raise BadTests("the checker does not define check(input, output, expected)")
    return StdioTests(_cases(tests.cases), checker, source)


def _cases(cases: Sequence[TestCase]) -> tuple[Case, ...]:
    if not cases:
        raise BadTests("no cases")
    if len(cases) > MAX_CASES:
        raise BadTests(f"{len(cases)} cases; the limit is {MAX_CASES}")
    return tuple(Case(case.input, case.expected) for case in cases)


def _compile(source: str, what: str) -> ast.Module:
    """Compile, and never run, what a problem brings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
            compile(source, "<tests>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise BadTests(f"{what} do{'es' if what.endswith('r') else ''} not compile: {error}") from error
    return tree


def _json(text: str, what: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadTests(f"{what} is not JSON: {error}") from error


@lru_cache(maxsize=64)
def called_name(source: str) -> str | None:
    """The first name that tests call, or else use, and do not define: for problems that do not say what they test."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    bound = {name for node in ast.walk(tree) for name in _bound(node)}
    nodes = list(ast.walk(tree))
    calls = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    return next((name for name in (*calls, *names) if name not in bound and not hasattr(builtins, name)), None)


def _bound(node: ast.AST) -> list[str]:
    match node:
        case ast.FunctionDef() | ast.ClassDef() | ast.AsyncFunctionDef():
            return [node.name]
        case ast.Import() | ast.ImportFrom():
            return [(alias.asname or alias.name).split(".")[0] for alias in node.names]
        case ast.Name(ctx=ast.Store()):
            return [node.id]
        case ast.arg():
            return [node.arg]
    return []
