# ruff: noqa: E501
"""The judge's stand-ins, in one process: the candidate's side answers in a thread, over a socket pair."""

from __future__ import annotations

import builtins
import socket
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest

from code_verifier.inside import frames
from code_verifier.inside.candidate import CandidatePeer
from code_verifier.inside.judge_peer import JudgePeer, Stop
from code_verifier.inside.mirrors import FromCandidate
from code_verifier.inside.remote import Remote


class Pair:
    """Both sides, with a program loaded."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._sockets = ours, theirs
        self.module = types.ModuleType("candidate")
        self.judge = JudgePeer(frames.Channel(ours.fileno()), __name__)
        candidate = CandidatePeer(frames.Channel(theirs.fileno()), self.module)

        def serve() -> None:
            try:
                candidate.serve()
            except (EOFError, OSError):
                return

        self._thread = threading.Thread(target=serve, daemon=True)
        self._thread.start()

    def load(self, source: str) -> None:
        exec(source, vars(self.module))

    def __getattr__(self, name: str) -> Any:
        return self.judge.name(name)

    def close(self) -> None:
        for end in self._sockets:
            end.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        for end in self._sockets:
            end.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


LIAR = """
class Liar:
    def __eq__(self, o): return True
    def __hash__(self): return hash(5)
    def __lt__(self, o): return True
    __le__ = __gt__ = __ge__ = __ne__ = __lt__
    def __add__(self, o): return 5
    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __add__
    def __abs__(self): return 0
    def __float__(self): return 5.0
    def __int__(self): return 5
    __index__ = __int__
    def __round__(self, n=None): return 5
    def __contains__(self, o): return True
    __class__ = int
def f(): return Liar()
"""


def test_liar_meets_no_plain_data(pair: Pair) -> None:
    pair.load(LIAR)
    liar = pair.f()
    assert type(liar) is Remote
    assert not isinstance(liar, int)
    assert (liar == 5, liar == 5, liar != 5) == (False, False, True)
    assert liar not in [5]
    assert liar not in {5}
    for use in (
        lambda: liar < 5,
        lambda: liar > 5,
        lambda: liar + 5,
        lambda: 5 - liar,
        lambda: abs(liar),
        lambda: float(liar),
        lambda: int(liar),
        lambda: round(liar),
        lambda: [1][liar],
        lambda: -liar,
        lambda: sum([liar]),
    ):
        with pytest.raises(TypeError):
            use()  # type: ignore[no-untyped-call]


def test_two_remotes_are_compared_where_they_live(pair: Pair) -> None:
    pair.load(
        "class P:\n    def __init__(s, x): s.x = x\n    def __eq__(s, o): return s.x == o.x\n    def __lt__(s, o): return s.x < o.x"
    )
    assert pair.P(1) == pair.P(1)
    assert pair.P(1) != pair.P(2)
    assert pair.P(1) < pair.P(2)
    assert [p.x for p in sorted([pair.P(3), pair.P(1)])] == [1, 3]
    first = pair.P(1)
    assert isinstance(first, pair.P)
    assert not isinstance(5, pair.P)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"5",
        b"{}",
        b'["ok",5]',
        b'["ok",5,[],0,0]',
        b'["ok",5,{},null]',
        b'["ok",["r",99],[],null]',
        b'["ok",5,[[0,[1]]],null]',
        b'["ok",5,[[99,[1]]],null]',
        b'["ok",5,[["0",[1]]],null]',
        b'["ok",5,[],7]',
        b'["ok",["l"],[],"x"]',
        b'["ok",["o","x","object"],[],null]',
        b'["ok",["o",0],[],null]',
        b'["ok",["w",0],[],null]',
        b'["ok",["w",-1],[],null]',
        b'["ok",["p","os.nothing"],[],null]',
        b'["ok",["p","code_verifier"],[],null]',
        b'["ok",["x","int"],[],null]',
        b'["ok",["x",[1,"A",[[1]]]],[],null]',
        b'["err",5,[],null]',
        b'["err",["ValueError",0,5,["t"],""],[],null]',
        b'["err",["ValueError",0,"x",5,""],[],null]',
        b'["err",["int",0,"x",["t"],""],[],null]',
        b'["no",5,[],null]',
        b'["ok",5.0,[],null]',
        b'["ok",true,[],null]',
        b'["ok",["o",3,"object"],[],null]',
    ],
)
def test_a_wrong_answer_ends_the_tests(answer: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = JudgePeer(frames.Channel(ours.fileno()), __name__)
        frames.Channel(theirs.fileno()).send(frames.ANSWER, answer)
        with pytest.raises(Stop):
            len(Remote(peer, 0, "object"))
        assert peer.found is not None
        assert peer.found[0] == "runtime_error"


@pytest.mark.parametrize("name", ["SystemExit", "KeyboardInterrupt", "GeneratorExit", "BaseException"])
def test_leaving_exceptions_end_the_tests(pair: Pair, name: str) -> None:
    pair.load(f"def f(): raise {name}(0)")
    with pytest.raises(Stop):
        pair.f()
    assert pair.judge.found == ("runtime_error", f"{name}: 0")
    with pytest.raises(Stop):
        pair.judge.name("f")


def test_exceptions_keep_class_text_and_attributes(pair: Pair) -> None:
    pair.load(
        "class Base(Exception): pass\nclass Bad(Base, KeyError):\n    def __init__(s, code): super().__init__('no'); s.code = code\n"
        "def f(): raise Bad(7)\ndef g(): raise OSError(2, 'gone')\ndef h(): raise UnicodeDecodeError('utf-8', b'', 0, 1, 'why')"
    )
    base, bad = pair.Base, pair.Bad
    with pytest.raises(bad) as caught:
        pair.f()
    error: Any = caught.value
    assert isinstance(error, base)
    assert isinstance(error, KeyError)
    assert isinstance(error, FromCandidate)
    assert (error.code, error.args) == (7, ("no",))
    with pytest.raises(OSError, match="gone"):
        pair.g()
    with pytest.raises(UnicodeDecodeError, match="why"):
        pair.h()


def test_stop_iteration_of_a_call_ends_no_loop(pair: Pair) -> None:
    pair.load(
        "def f(x): raise StopIteration\nclass I:\n    def __iter__(s): return s\n    def __next__(s): raise StopIteration"
    )
    with pytest.raises(RuntimeError):
        list(map(pair.f, [1, 2]))
    assert list(pair.I()) == []


def test_changes_come_back(pair: Pair) -> None:
    pair.load(
        "def f(a, d, s):\n    a.append(a)\n    a[0].append('x')\n    d['k'] = a[0]\n    s.clear()\n    return a[0]\n"
        "def g(a):\n    a.append(1)\n    raise ValueError"
    )
    inner: list[Any] = []
    outer: list[Any] = [inner]
    data: dict[str, Any] = {}
    some = {1, 2}
    assert pair.f(outer, data, some) is inner
    assert inner == ["x"]
    assert outer[1] is outer
    assert data["k"] is inner
    assert some == set()
    with pytest.raises(ValueError):  # noqa: PT011
        pair.g(inner)
    assert inner == ["x", 1]


def test_callbacks_run_here(pair: Pair) -> None:
    pair.load(
        "def apply(f, *a): return f(*a)\ndef twice(f, x): return f(f(x))\ndef swallow(f):\n    try:\n        return f()\n    except ZeroDivisionError as e:\n        return 'caught'\n"
        "def back(f): return f\ndef each(it): return [x * 2 for x in it]\ndef name(o): o.count += 1; return o.label"
    )
    seen = []
    assert pair.apply(seen.append, 3) is None
    assert seen == [3]
    assert pair.twice(lambda x: pair.apply(lambda y: y + 1, x), 1) == 3
    assert pair.swallow(lambda: 1 // 0) == "caught"

    def function() -> None: ...

    assert pair.back(function) is function
    assert pair.each(iter([1, 2])) == [2, 4]
    assert pair.each(x for x in (1, 2)) == [2, 4]
    assert pair.apply(max, [1, 3, 2]) == 3
    assert pair.apply(str.upper, "a") == "A"

    class Thing:
        label = "l"
        count = 0

    thing = Thing()
    assert pair.name(thing) == "l"
    assert thing.count == 1


SECRET = 5


def test_callbacks_lead_nowhere(pair: Pair) -> None:
    pair.load(
        "def f(o, name):\n    for part in name.split('.'):\n        o = getattr(o, part)\n    return o\ndef g(o, k): return o[k]"
    )

    class Thing:
        def method(self) -> int:
            return SECRET

    for what, name in (
        (lambda: SECRET, "__globals__"),
        (lambda: SECRET, "__code__.co_consts"),
        (lambda: SECRET, "func_globals"),
        ((x for x in [1]), "gi_frame.f_globals"),
        (Thing(), "method.__func__.__globals__"),
        (Thing(), "_Thing__x"),
        (Thing, "method"),
        (pytest, "fail"),
    ):
        with pytest.raises((AttributeError, TypeError)):
            pair.f(what, name)
    with pytest.raises(TypeError):
        pair.g(lambda: SECRET, "x")


def test_assertion_in_a_callback_cannot_be_swallowed(pair: Pair) -> None:
    pair.load("def f(check):\n    try:\n        check(1)\n    except BaseException:\n        pass\n    return 5")

    def check(x: int) -> None:
        assert x == 2

    with pytest.raises(Stop):
        pair.f(check)
    assert pair.judge.found is not None
    assert pair.judge.found[0] == "wrong_answer"


def test_context_manager_swallows_nothing(pair: Pair) -> None:
    pair.load("class C:\n    def __enter__(s): return 1\n    def __exit__(s, *a): return True")
    with pytest.raises(ZeroDivisionError), pair.C():
        _ = 1 // 0


@pytest.mark.parametrize(
    "kind", [k for k in vars(builtins).values() if isinstance(k, type) and issubclass(k, Exception)], ids=str
)
def test_every_builtin_exception_has_a_stand_in(pair: Pair, kind: type[Exception]) -> None:
    name = kind.__name__
    loops = issubclass(kind, (StopIteration, StopAsyncIteration))
    arguments = {"UnicodeDecodeError": "('a', b'', 0, 1, '')", "UnicodeEncodeError": "('a', '', 0, 1, '')"}
    arguments |= {"UnicodeTranslateError": "('', 0, 1, '')", "ExceptionGroup": "('x', [ValueError()])"}
    pair.load(f"Named = {name}\nclass Own({name}): pass\ndef f(kind):\n    raise kind{arguments.get(name, '(1)')}")
    for which in ("Named", "Own"):
        stand_in = pair.judge.name(which)
        assert issubclass(stand_in, FromCandidate)
        assert issubclass(stand_in, RuntimeError if loops else kind)
        assert not issubclass(AssertionError, stand_in)
        with pytest.raises(stand_in) as caught:
            pair.judge.name("f")(stand_in)
        assert isinstance(caught.value, FromCandidate)
    assert pair.judge.name("Named") == kind


def test_modules_are_the_judges_own(pair: Pair) -> None:
    import math

    pair.load("import math\nfrom math import *")
    assert type(pair.judge.name("math")) is Remote
    pair.judge.modules = frozenset(("math",))
    assert pair.judge.name("math") is math


def test_missing_name(pair: Pair) -> None:
    with pytest.raises(KeyError):
        pair.judge.name("nothing")
    assert pair.judge.missing == {"nothing"}


def test_builtins_are_watched(pair: Pair) -> None:
    import builtins

    pair.load("import builtins\ndef f(): builtins.ascii = None")
    kept = builtins.ascii
    try:
        with pytest.raises(Stop):
            pair.f()
    finally:
        builtins.ascii = kept
    assert pair.judge.found == ("runtime_error", "tampered: builtins.ascii was replaced")


def test_nesting_is_bounded(pair: Pair) -> None:
    pair.load("def f(g, n): return g(n)")

    def again(n: int) -> Any:
        return pair.f(again, n + 1)

    with pytest.raises(RecursionError):
        pair.f(again, 0)
    pair.load("def one(): return 1")
    assert pair.one() == 1


def test_what_is_shared_is_sent_along(pair: Pair) -> None:
    pair.load("class N:\n    def __init__(s): s.kids = []\n    def count(s): return len(s.kids)")
    node = pair.N()
    node.kids.append(pair.N())
    node.kids.append(3)
    assert node.count() == 2
    assert node.kids is node.kids
    assert node.kids[0].count() == 0
