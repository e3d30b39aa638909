"""Tests that nobody calls and results that nobody reads: without them a source that has them would seem to pass."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from .judge_peer import JudgePeer, Stop
from .mirrors import FromCandidate
from .reporting import Unusable, of_exception

_TAKES_ARGUMENTS = "nothing calls the test {}, which takes arguments"


class Unread:
    """Failures that raise nothing where the tests run: in the results of ``unittest`` and ``doctest``
    (``main(exit=False)``), in threads, and in futures and tasks whose results are not asked for.

    Attributes:
        found: status and reason of each, until :meth:`take`.
    """

    def __init__(self, peer: JudgePeer) -> None:
        self._peer = peer
        self._watched: set[str] = set()
        self._futures: dict[int, BaseException] = {}
        self.found: list[tuple[str, str]] = []

    def take(self) -> tuple[str, str]:
        """The first of them; all are forgotten."""
        first = self.found[0]
        self.found.clear()
        return self._peer.found or first

    def settle(self) -> None:
        """At the end of the tests: nobody will ask for the results that nobody has asked for."""
        for error in self._futures.values():
            self._note(error)
        self._futures.clear()

    def watch(self) -> None:
        """Look at what the tests have imported until now."""
        for name, install in (
            ("unittest", self._unittest),
            ("doctest", self._doctest),
            ("threading", self._threads),
            ("concurrent.futures", self._pools),
            ("asyncio", self._loops),
        ):
            if name not in self._watched and name in sys.modules:
                self._watched.add(name)
                install(sys.modules[name])

    def _note(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, (SystemExit, Stop)):
            self.found.append(of_exception(self._peer, error))

    def _unittest(self, module: Any) -> None:
        result = module.TestResult
        note, found = self._note, self.found

        def failing(name: str) -> None:
            original = getattr(result, name)

            def method(self: Any, test: Any, *rest: Any) -> Any:
                info = rest[-1]
                note(info[1] if info else None)
                return original(self, test, *rest)

            setattr(result, name, method)

        for name in ("addFailure", "addError", "addSubTest"):
            failing(name)
        unexpected = result.addUnexpectedSuccess

        def add_unexpected(self: Any, test: Any) -> Any:
            found.append(("wrong_answer", f"unexpected success of {type(test).__name__}"))
            return unexpected(self, test)

        result.addUnexpectedSuccess = add_unexpected

    def _doctest(self, module: Any) -> None:
        runner, found = module.DocTestRunner, self.found
        original = runner.run

        def run(self: Any, test: Any, *rest: Any, **named: Any) -> Any:
            results = original(self, test, *rest, **named)
            if results.failed:
                found.append(("wrong_answer", f"{results.failed} examples of the doctest {test.name} fail"))
            return results

        runner.run = run

    def _threads(self, module: Any) -> None:
        original = module.excepthook

        def hook(args: Any) -> None:
            self._note(args.exc_value)
            original(args)

        module.excepthook = hook

    def _pools(self, module: Any) -> None:
        future, held = module.Future, self._futures
        fail, result, exception = future.set_exception, future.result, future.exception

        def set_exception(self: Any, error: BaseException) -> None:
            held[id(error)] = error
            fail(self, error)

        def asking(original: Callable[..., Any]) -> Callable[..., Any]:
            def method(self: Any, *rest: Any, **named: Any) -> Any:
                try:
                    return original(self, *rest, **named)
                finally:
                    held.pop(id(self._exception), None)

            return method

        future.set_exception, future.result, future.exception = set_exception, asking(result), asking(exception)

    def _loops(self, module: Any) -> None:
        note, loop = self._note, module.BaseEventLoop
        original = loop.call_exception_handler

        def call_exception_handler(self: Any, context: dict[str, Any]) -> None:
            note(context.get("exception"))
            original(self, context)

        loop.call_exception_handler = call_exception_handler


def uncalled_tests(space: dict[str, Any], nodes: list[ast.AST]) -> Iterator[Callable[[], object]]:
    """Tests in the manner of pytest and unittest that the source defines and does not call itself."""
    named = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    named |= {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    unittest = sys.modules.get("unittest")  # the tests have imported it, if they use it
    runs_itself = bool(named & {"main", "TextTestRunner", "TestLoader", "defaultTestLoader"})
    for name, value in list(space.items()):
        if name in named:
            continue
        if isinstance(value, types.FunctionType) and name.startswith("test"):
            if _required(value) == 0:
                yield _running(value)
            elif name.startswith("test_"):
                yield _refusal(name)
        elif not isinstance(value, type):
            continue
        elif unittest and issubclass(value, unittest.TestCase):
            if not runs_itself:
                for test in unittest.defaultTestLoader.loadTestsFromTestCase(value):
                    yield test.debug
        elif name.startswith("Test") and value.__module__ == space.get("__name__"):
            yield from _methods(value)


def _required(function: types.FunctionType) -> int:
    code = function.__code__
    only_named = set(code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount])
    return code.co_argcount - len(function.__defaults__ or ()) + len(only_named - set(function.__kwdefaults__ or ()))


def _methods(kind: type) -> Iterator[Callable[[], object]]:
    for name in [n for base in reversed(kind.__mro__) for n in vars(base) if n.startswith("test")]:
        found = getattr(kind, name, None)
        if not callable(found) or isinstance(found, FromCandidate):
            continue
        plain = getattr(found, "__func__", found)
        bound = isinstance(found, types.MethodType) or isinstance(vars(kind).get(name), staticmethod)
        if isinstance(plain, types.FunctionType) and _required(plain) > (0 if bound and plain is found else 1):
            yield _refusal(f"{kind.__name__}.{name}")
        else:
            yield _method(kind, name)


def _method(kind: type, name: str) -> Callable[[], object]:
    def run() -> None:
        prepare = getattr(kind, "setup_class", None)
        if prepare is not None and "_gristmill_prepared" not in vars(kind):
            kind._gristmill_prepared = True  # type: ignore[attr-defined]
            prepare()
        instance = kind()
        for before in ("setup_method", "setup"):
            _if_there(instance, before)
        try:
            _running(getattr(instance, name))()
        finally:
            for after in ("teardown_method", "teardown"):
                _if_there(instance, after)

    return run


def _if_there(instance: object, name: str) -> None:
    found = getattr(instance, name, None)
    if found is None:
        return
    plain = getattr(found, "__func__", found)
    takes = isinstance(plain, types.FunctionType) and _required(plain) == 2
    found(None) if takes else found()


def _running(function: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        result = function()
        if isinstance(result, types.CoroutineType):
            import asyncio  # late: slow to import, seldom needed

            asyncio.run(result)
        elif isinstance(result, types.GeneratorType):
            for _ in result:
                pass

    return run


def _refusal(name: str) -> Callable[[], object]:
    def run() -> None:
        raise Unusable(_TAKES_ARGUMENTS.format(name))

    return run
