# ruff: noqa: E501, RUF005, E721, B015, SIM300
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
    assert issubclass(type(liar), Remote)
    assert not isinstance(liar, int)
    assert (liar == 5, liar == 5, liar != 5) == (False, False, True)
    assert liar not in [5]
    assert liar not in {5}
    for use in (
        lambda: liar < 5,
        lambda: liar > 5,
        lambda: liar + 5,
        lambda: 5 - liar,
        lambda: float(liar),
        lambda: int(liar),
        lambda: round(liar),
        lambda: [1][liar],
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


def test_subclasses_of_plain_types_are_plain_and_more(pair: Pair) -> None:
    pair.load(
        """
from collections import OrderedDict, defaultdict, namedtuple
from enum import IntEnum
from typing import NamedTuple
class Stack(list):
    def push(self, x): self.append(x); return self
    def pop(self): return list.pop(self) * 10
    def peek(self): return self[-1]
class LRU(OrderedDict):
    def __init__(self, n): super().__init__(); self.n = n
    def get(self, k):
        if k not in self: return -1
        self.move_to_end(k); return self[k]
    def put(self, k, v):
        self[k] = v; self.move_to_end(k)
        if len(self) > self.n: self.popitem(last=False)
class Folded(dict):
    def __getitem__(self, k): return dict.__getitem__(self, k.lower())
    def __setitem__(self, k, v): dict.__setitem__(self, k.lower(), v)
class Tree(dict):
    def __missing__(self, k): v = self[k] = Tree(); return v
class Color(IntEnum):
    RED = 1
    BLUE = 2
class Money(int):
    def __add__(self, o): return Money(int(self) + int(o) + 1)
    def __str__(self): return f"${int(self)}"
    def twice(self): return Money(self * 2)
class Point(NamedTuple):
    x: int
    y: int = 0
    def norm(self): return self.x + self.y
class Pair(namedtuple("Pair", "a b")): pass
class Name(str):
    def initials(self): return self[:1]
class Vec(tuple):
    def __add__(self, o): return Vec(a + b for a, b in zip(self, o))
    def __neg__(self): return Vec(-a for a in self)
def same(x): return x
def first(): return Color.RED
"""
    )
    stack = pair.Stack()
    assert isinstance(stack, list)
    assert isinstance(stack, pair.Stack)
    assert stack == []
    assert stack.push(1) is stack
    assert (stack, len(stack), stack.peek()) == ([1], 1, 1)
    stack.append(7)
    stack += [8]
    assert stack.peek() == 8
    assert stack.pop() == 80
    assert [1, 7] == stack
    assert pair.same(stack) is stack
    assert [0, *stack] == [0] + stack == [0, 1, 7]
    lru = pair.LRU(2)
    lru.put(1, 1), lru.put(2, 2)
    assert lru.get(1) == 1
    lru.put(3, 3)
    assert lru.get(2) == -1
    assert list(lru) == [1, 3]
    assert dict(lru) == {1: 1, 3: 3}
    folded = pair.Folded()
    folded["A"] = 1
    assert (folded["a"], folded["A"], folded) == (1, 1, {"a": 1})
    tree = pair.Tree()
    tree["a"]["b"] = 5
    assert tree == {"a": {"b": 5}}
    assert tree["a"]["b"] == 5
    color = pair.Color.RED
    assert (color.name, color.value, color, color + 1) == ("RED", 1, 1, 2)
    assert color is pair.Color.RED is pair.first()
    assert [c.name for c in pair.Color] == ["RED", "BLUE"]
    assert repr(color) == "<Color.RED: 1>"
    money = pair.Money(5)
    assert (str(money), money, money + 3, money.twice(), pair.same(money)) == ("$5", 5, 8, 10, 5)
    assert money + pair.Money(1) == 7
    assert isinstance(money + money, pair.Money)
    assert hash(money) == hash(5)
    point = pair.Point(2)
    assert (point, point.x, point.norm(), point._replace(y=3)) == ((2, 0), 2, 2, (2, 3))
    assert pair.Pair(1, 2).b == 2
    name = pair.Name("ada")
    assert (name, name.initials(), name.upper(), f"{name}!", [name]) == ("ada", "a", "ADA", "ada!", ["ada"])
    assert pair.Vec((1, 2)) + pair.Vec((3, 4)) == (4, 6)
    assert -pair.Vec((1, 2)) == (-1, -2)
    import copy
    import json

    other = copy.deepcopy(stack)
    assert other == stack
    assert other is not stack
    assert json.dumps([stack, money, name]) == '[[1, 7], 5, "ada"]'


def test_subclasses_lie_in_vain(pair: Pair) -> None:
    pair.load(
        """
def lie(*a): return True
def number(*a): return 5
names = "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __contains__ startswith".split()
names += "__bool__ endswith isdigit issubset issuperset isdisjoint".split()
more = "__hash__ __len__ __int__ __index__ __float__ __abs__ __sub__ __rsub__ __add__ __radd__ __round__ __neg__".split()
def liar(base, *a):
    space = dict.fromkeys(names, lie) | dict.fromkeys(more, number) | {"__iter__": lambda s: iter([5])}
    space["__getattribute__"] = lambda s, n: 5
    class Meta(type):
        def __instancecheck__(c, o): return True
        def __eq__(c, o): return True
        __hash__ = type.__hash__
    return Meta("L", (base,), space | {"__module__": "candidate"})(*a)
"""
    )
    zero, text, row, fixed = pair.liar(int, 0), pair.liar(str, "no"), pair.liar(list, [1]), pair.liar(tuple, [1])
    some, data, broken = pair.liar(set, [1]), pair.liar(dict, {1: 2}), pair.liar(float, 0.5)
    assert zero == 0
    assert not any([zero == 5, 5 == zero, zero in [5], zero in {5}, zero > 4, abs(zero - 5) < 1, round(zero) == 5])
    assert not any([text == "yes", text.startswith("y"), text.endswith("s"), text.isdigit(), "y" in text])
    assert not any([row == [5], [5] == row, 5 in row, list(row) == [5], sorted(row) == [5], len(row) == 5])
    assert not any([fixed == (5,), tuple(fixed) == (5,), 5 in fixed, sum(fixed) == 5, [*fixed] == [5]])
    assert not any([some == {5}, 5 in some, {5} == some, some >= {5}, set(some) == {5}])
    assert not any([data == {5: 5}, 5 in data, {**data} == {5: 5}, dict(data) == {5: 5}, list(data) == [5]])
    assert not any([broken == 5.0, abs(broken - 5.0) < 1e-6, float(broken) == 5.0, int(broken) == 5])


def test_nothing_of_plain_operands_crosses(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.load(
        "class M(int):\n    def __add__(s, o): return 1\n    __eq__ = __sub__ = __radd__ = __add__\n    __hash__ = int.__hash__\nm = M(2)\nl = type('L', (list,), {})()"
    )
    money, row = pair.m, pair.l
    from collections import Counter

    pair.load(
        "from collections import Counter\nclass C(Counter):\n    def __getitem__(s, k): return 1\n    __missing__ = __getitem__\nc = C()\n"
        "class S(set):\n    def difference(s, o): return set()\n    issubset = difference\ns = S()\n"
        "class L(list):\n    def count(s, x): return 1\nlist_ = L()"
    )
    counter, some, other = pair.c, pair.s, pair.list_
    asked: list[str] = []
    monkeypatch.setattr(JudgePeer, "request", lambda *a: asked.append(a[1]))
    assert (money + 5, 5 + money, money - 5, money == 5, 5 == money, money < 5) == (7, 7, -3, False, False, True)
    assert (row + [5], [5] + row, row == [5], 5 in row, money in {5: 1}) == ([5], [5], False, False, False)
    assert counter != Counter("ab")
    assert not counter >= Counter("ab")
    assert Counter("ab") - counter == Counter("ab")
    assert (some.difference({5}), some >= {5}, {5} - some, {5}.difference(some)) == (set(), False, {5}, {5})
    assert (other.count(5), other[:]) == (0, [])
    assert asked == []


def test_operators_of_one_operand(pair: Pair) -> None:
    pair.load(
        "class V:\n    def __init__(s, x): s.x = x\n    def __abs__(s): return abs(s.x)\n    def __neg__(s): return V(-s.x)\n"
        "    def __float__(s): return float(s.x)\n    def __int__(s): return int(s.x)\n    def __round__(s, n=None): return round(s.x, n)\n"
        "    def __getitem__(s, k): return [1, 2, 3, 4][k]\n    def __eq__(s, o): return s.x == o.x\n    def __hash__(s): return hash(s.x)\n"
        "class U(V):\n    __hash__ = None"
    )
    v = pair.V(-3)
    assert (abs(v), (-v).x, float(v), int(v), round(v), round(v, 1)) == (3, 3, -3.0, -3, -3, -3)
    assert (v[1:3], v[::-1], v[:]) == ([2, 3], [4, 3, 2, 1], [1, 2, 3, 4])
    assert hash(v) == hash(pair.V(-3)) == hash(-3)
    assert len({v, pair.V(-3), pair.V(4)}) == 2
    assert v not in {-3}
    with pytest.raises(TypeError, match="unhashable"):
        hash(pair.U(1))
    assert type(v).__name__ == v.__class__.__name__ == "V"
    assert type(v) == type(pair.V(1)) == pair.V
    assert type(v) != pair.U
    assert type(v) is not type(pair.U(1))
    assert vars(v) == v.__dict__ == {"x": -3}
    with pytest.raises(TypeError):
        v + 1
    with pytest.raises(TypeError):
        v < 1


def test_what_a_program_sees_of_a_function(pair: Pair) -> None:
    pair.load(
        "import functools, inspect\ndef logged(f):\n    @functools.wraps(f)\n    def inner(*a, **k): return f(*a, **k)\n    return inner\n"
        "def sig(f): return str(inspect.signature(f))\ndef count(f): return f.__code__.co_argcount, f.__name__\n"
        "def curry(f, n=None):\n    n = n or len(inspect.signature(f).parameters)\n    return (lambda x: curry(functools.partial(f, x), n - 1)) if n > 1 else f\n"
        "cbs = []\ndef on(f): cbs.append(f)\ndef off(f): cbs.remove(f); return len(cbs)\ndef odd(f): return f == None, f != None, f == f, f in {f: 1}"
    )

    def area(w: int, h: int = 1, *more: int, deep: bool = False, **other: int) -> int:
        """Area."""
        return w * h

    made = pair.logged(area)
    assert (made.__name__, made.__doc__, made(2, 3)) == ("area", "Area.", 6)
    assert pair.sig(area) == "(w, h=None, *more, deep=None, **other)"
    assert pair.count(area) == (2, "area")
    assert pair.curry(lambda a, b, c: a + b + c)(1)(2)(3) == 6
    pair.on(area)
    pair.on(len)
    assert pair.off(area) == 1
    assert pair.odd(area) == (False, True, True, True)


def test_exceptions_of_callbacks_come_back_as_themselves(pair: Pair) -> None:
    pair.load(
        "held = []\ndef apply(f): return f()\ndef keep(f):\n    try:\n        f()\n    except Exception as e:\n        held.append(e)\ndef late(): raise held[0]"
    )

    class Own(ValueError):
        pass

    def fail() -> None:
        raise Own(3)

    with pytest.raises(Own) as caught:
        pair.apply(fail)
    assert caught.value.args == (3,)
    pair.keep(fail)
    with pytest.raises(ValueError, match="3") as later:  # in another call it is no longer the tests'
        pair.late()
    assert isinstance(later.value, FromCandidate)


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
