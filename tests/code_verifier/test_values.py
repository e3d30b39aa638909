"""Plain data crosses unchanged; what lies is read as what it is; what is hostile is refused."""

from __future__ import annotations

import array
import datetime as dt
import enum
import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from decimal import Decimal
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_verifier.inside import values
from code_verifier.inside.decoding import Decoder
from code_verifier.inside.encoding import Encoder
from code_verifier.inside.values import Malformed, Uncarried


def refuse(value: object) -> NoReturn:
    raise Malformed(f"not plain: {value!r}")


def carry(value: object) -> Any:
    """To JSON bytes and back."""
    return Decoder(refuse).decode(values.loads(values.dumps(Encoder(refuse).encode(value))))


def same(first: object, second: object) -> bool:
    """Equal, of equal types, all the way down; NaN is NaN, and -0.0 is not 0.0."""
    if type(first) is not type(second):
        return False
    if isinstance(first, float) and isinstance(second, float):
        return (math.isnan(first) and math.isnan(second)) or (
            first == second and math.copysign(1, first) == math.copysign(1, second)
        )
    if isinstance(first, complex) and isinstance(second, complex):
        return same(first.real, second.real) and same(first.imag, second.imag)
    if isinstance(first, list | tuple | deque) and isinstance(second, list | tuple | deque):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return same(list(first), list(second)) and same(list(first.values()), list(second.values()))
    return first == second


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None, exclude_categories=[]))
    | st.complex_numbers()
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.fractions()
    | st.dates()
    | st.times()
    | st.datetimes()
    | st.timedeltas()
)
HASHABLE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(HASHABLE, inner, max_size=4)
        | st.lists(inner, max_size=4).map(deque)
        | st.sets(HASHABLE, max_size=4)
        | st.frozensets(HASHABLE, max_size=4)
    ),
    max_leaves=20,
)


@given(PLAIN)
def test_plain_data_crosses_unchanged(value: object) -> None:
    assert same(carry(value), value)


@given(st.integers(min_value=-(10**6000), max_value=10**6000) | st.sampled_from([1 << 63, -(1 << 63), 1 << 100_000]))
def test_integers_of_any_size(value: int) -> None:
    assert carry(value) == value


@pytest.mark.parametrize(
    "value",
    [
        "\ud83d\ude00",  # two halves, not one character
        "\ud800",
        "\U0001f600",
        math.inf,
        -math.inf,
        -0.0,
        complex(-0.0, math.inf),
        range(3, 10, 2),
        ...,
        NotImplemented,
        Decimal("NaN"),
        Decimal("-0.00"),
        dt.datetime(2024, 1, 2, 3, 4, 5, 6, dt.UTC, fold=1),
        dt.time(1, 2, tzinfo=dt.timezone(dt.timedelta(hours=-3, minutes=-30))),
        int,
        dict,
        Counter("abca"),
        OrderedDict([("b", 1), ("a", 2)]),
        defaultdict(list, {1: [2]}),
        defaultdict(None, {1: 2}),
        deque([1, 2], maxlen=2),
        bytearray(b"ab"),
        array.array("d", [1.5, 2.5]),
        [],
        (),
        {},
        set(),
        frozenset(),
        {1: {2: {3: [(), {4}]}}},
    ],
    ids=repr,
)
def test_value_keeps_type_and_content(value: object) -> None:
    got = carry(value)
    assert type(got) is type(value)
    assert repr(got) == repr(value)


def test_named_tuples_keep_their_fields() -> None:
    got = carry(namedtuple("Point", "x y")(1, [2]))
    assert (got.x, got.y, got) == (1, [2], (1, [2]))


def test_views_stay_views() -> None:
    data = {"a": 1, "b": 2}
    assert carry(data.keys()) == {"a", "b"}
    assert list(carry(data.values())) == [1, 2]
    assert carry(data.items()) == data.items()


def test_aliases_and_cycles_are_kept() -> None:
    inner = [1]
    got = carry([inner, inner, {"x": inner}])
    assert got[0] is got[1] is got[2]["x"]
    loop: list[Any] = [1]
    loop.append(loop)
    got = carry(loop)
    assert got[1] is got
    shared: Any = (1,)
    for _ in range(100):
        shared = (shared, shared)
    got = carry(shared)
    assert got[0] is got[1]


class Liar:
    """Mixed into plain types: every method of it lies."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __iter__(self) -> Any:
        return iter([5])

    def __len__(self) -> int:
        return 1

    def __getitem__(self, key: object) -> int:
        return 5

    def __str__(self) -> str:
        return "lie"

    __repr__ = __str__

    def __int__(self) -> int:
        return 5

    __index__ = __int__

    def __float__(self) -> float:
        return 5.0

    def __pos__(self) -> Any:
        return 5

    def items(self) -> Any:
        return [(5, 5)]

    keys = values = __iter__


@pytest.mark.parametrize(
    ("base", "argument"),
    [
        (int, 3),
        (float, 2.5),
        (str, "truth"),
        (bytes, b"x"),
        (list, [1]),
        (tuple, (1, 2)),
        (dict, {1: 2}),
        (set, {1}),
        (frozenset, frozenset({2})),
        (deque, deque([1])),
        (bytearray, bytearray(b"q")),
        (complex, 1j),
    ],
)
def test_subclasses_are_read_by_the_base_class(base: type, argument: Any) -> None:
    kind = type("Lie", (Liar, base), {})
    got = carry(kind(argument))
    assert type(got) is base
    assert got == argument


def test_class_attribute_does_not_lie() -> None:
    class Fake:
        @property
        def __class__(self) -> Any:  # type: ignore[override]
            return int

    with pytest.raises(Malformed):
        Encoder(refuse).encode(Fake())


def test_enum_members_of_plain_kind_are_their_values() -> None:
    class Colour(enum.IntEnum):
        RED = 3

    assert carry(Colour.RED) == 3
    assert type(carry(Colour.RED)) is int


def test_depth_and_size_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    deep: Any = 0
    for _ in range(values.DEPTH + 5):
        deep = [deep]
    with values.deep(), pytest.raises(Uncarried, match="deep"):
        Encoder(refuse).encode(deep)
    monkeypatch.setattr("code_verifier.inside.encoding.NODES", 100)
    with pytest.raises(Uncarried, match="100 values"):
        Encoder(refuse).encode([[1] * 60, [2] * 60])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "nan",
        "NaN",
        "[NaN]",
        "{}",
        '{"a":1}',
        "[]",
        "[1]",
        "[null]",
        '["?"]',
        '["r",0]',
        '["l",["r",5]]',
        '["l",["r",-1]]',
        '["l",["r",true]]',
        '["t",["r",0]]',
        '["d",1]',
        '["d",["l"],1]',
        '["s",["l"]]',
        '["z",["d"]]',
        '["i","zz"]',
        '["i",5]',
        '["f","1"]',
        '["b","0"]',
        '["u","ff"]',
        '["g",1,2,0]',
        '["g","a",2,1]',
        '["h",1,0]',
        '["h",["l"],1]',
        '["m","x"]',
        '["m",[]]',
        '["y",1,2,99]',
        '["M",1]',
        '["k","eval"]',
        '["k","__import__"]',
        '["D","eval",1,2]',
        '["D","list",1]',
        '["a","u","x"]',
        '["a","b",1000]',
        '["q","x"]',
        '["q",-1]',
        '["n","X",["a"],1,2]',
        '["n","X","ab",1,2]',
        '["n",1,["a"],1]',
        '["c","a",1]',
        '["c",1]',
        '["o",1]',
        '["o",1,2,3]',
        "[" * 100_000,
        '["l",' * 5000 + "1" + "]" * 5000,
    ],
    ids=lambda text: text[:20],
)
def test_hostile_json_is_refused(text: str) -> None:
    with pytest.raises(Malformed), values.deep():
        Decoder(refuse).decode(values.loads(text.encode()))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=5) | st.lists(st.sampled_from("rifucbBltndszqCODagENmhyLTMkKVIowxp") | inner)
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_json_is_a_value_or_malformed(data: object) -> None:
    decoder = Decoder(refuse)
    try:
        value = decoder.decode(data)
    except Malformed:
        return
    assert repr(carry(value)) == repr(value)


def test_a_change_reaches_only_what_was_sent() -> None:
    held, frozen = [1], (2,)
    decoder = Decoder(refuse, [held, frozen])
    decoder.change(0, [7, ["r", 1]])
    assert held == [7, (2,)]
    for number, content in ((1, [1]), (2, [1]), (-1, [1]), (True, [1]), ("0", [1]), (0, 5), (0, None)):
        with pytest.raises(Malformed):
            decoder.change(number, content)


def test_changes_of_every_mutable_kind() -> None:
    cases: list[tuple[Any, Any]] = [
        ([1], [2, 3]),
        ({1: 2}, {3: 4}),
        ({1}, {2}),
        (deque([1]), deque([2])),
        (bytearray(b"a"), bytearray(b"bc")),
        (array.array("i", [1]), array.array("i", [2, 3])),
        (OrderedDict(a=1), OrderedDict(b=2)),
        (Counter("a"), Counter("bb")),
        (defaultdict(int, a=1), defaultdict(int, b=2)),
    ]
    for target, now in cases:
        before = values.holding(target)
        assert values.same_contents(before, target)
        assert not values.same_contents(before, now)
        encoder = Encoder(refuse, [target])
        Decoder(refuse, [target]).change(0, encoder.change(now))
        assert target == now
