"""Items of lists and sets: which are plainly the same, so that long lists need no comparison of all with all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction

from math_verifier.parse.ast import Node, Num, Sym


def key(item: Node) -> Fraction | Node:
    """Equal for equal numbers however written, and for equal trees."""
    return item.value if isinstance(item, Num) else item


def assignments(names: Sequence[Node | None], values: Sequence[Node]) -> list[dict[Node, Node]] | None:
    """``p = 5, q = 2, p = 7, q = 2`` as one group for each time the names come round; None for other lists."""
    size = next((place for place in range(1, len(names)) if names[place] == names[0]), 0)
    if size < 2 or len(names) % size or None in names or len(set(names[:size])) < size:
        return None
    groups: list[dict[Node, Node]] = []
    for start in range(0, len(names), size):
        group = {name: value for name, value in zip(names[start:], values[start : start + size], strict=False) if name}
        if set(group) != set(names[:size]):
            return None
        groups.append(group)
    return groups


def in_order(names: Sequence[Node | None], values: tuple[Node, ...]) -> tuple[Node, ...]:
    """``y = 2, x = 1`` in the order of a pair: by name, where the names are neighbours in the alphabet."""
    letters = [name.name for name in names if isinstance(name, Sym) and len(name.name) == 1]
    ordered = sorted(letters)
    if len(letters) != len(values) or [ord(letter) - ord(ordered[0]) for letter in ordered] != list(range(len(values))):
        return values
    return tuple(value for _, value in sorted(zip(letters, values, strict=True), key=lambda pair: pair[0]))


def all_whole(items: Iterable[Node]) -> bool:
    """Whether all are plain whole numbers, for which nothing but being the same counts."""
    return all(isinstance(item, Num) and item.places is None and item.value.denominator == 1 for item in items)


def without_common(left: Sequence[Node], right: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """What is left of both after items that occur in both are taken out, one for one."""
    common = Counter(map(key, left)) & Counter(map(key, right))
    rests: list[list[Node]] = []
    for items in (left, right):
        count = Counter(common)
        rest: list[Node] = []
        for item in items:
            if count[key(item)] > 0:
                count[key(item)] -= 1
            else:
                rest.append(item)
        rests.append(rest)
    return rests[0], rests[1]
