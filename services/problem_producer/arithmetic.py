"""The built-in problem source: an endless, seeded stream of arithmetic and algebra problems.

Invariants:

- **Random access.** `source.at(i)` depends only on the source's settings and `i`, so a stored position is one
  number and a resumed stream goes on exactly where it stopped.
- **Stable.** Only `random.Random.random()` is drawn from, whose sequence Python promises to keep for a seed.
- **Disjoint splits.** A problem is held out if the hash of its canonical form says so, whatever the seed, level
  or index that produced it. The canonical form orders the operands of sums and products, so `3 + 5` is never
  trained on while `5 + 3` is held out.

Levels, from one step with small numbers to algebra (made in `arithmetic_levels` and `algebra_levels`):

1. one step with numbers up to 18
2. one step with numbers up to 99, exact division
3. two or three steps, larger sums
4. fractions, percentages, linear equations, longer expressions
5. equations with the unknown on both sides, systems of two equations, remainders, divisors and multiples
6. quadratic equations, expanding and evaluating polynomials (with SymPy, which is loaded when first needed)
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from problem_producer.algebra_levels import ALGEBRA_MAKERS
from problem_producer.arithmetic_levels import ARITHMETIC_MAKERS
from problem_producer.draft import Draw, Maker

Split = Literal["train", "heldout"]

MAKERS: dict[tuple[int, str], Maker] = {**ARITHMETIC_MAKERS, **ALGEBRA_MAKERS}
LEVELS: tuple[int, ...] = tuple(sorted({level for level, _ in MAKERS}))
KINDS: tuple[str, ...] = tuple(sorted({kind for _, kind in MAKERS}))

HELDOUT_ONE_IN = 8
"""One canonical problem of this many is held out."""

_MAX_DRAWS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedProblem:
    """One problem with its gold answer.

    `answer` is what belongs inside the box (LaTeX for fractions and polynomials, plain digits otherwise);
    `solution` is a short worked rationale that ends in `\\boxed{answer}`. Equal problems have equal
    `problem_id`s.
    """

    problem_id: str
    text: str
    answer: str
    solution: str
    level: int
    kind: str


def split_of(canonical: str) -> Split:
    """The split that a canonical problem belongs to; independent of seeds and settings."""
    digest = hashlib.sha256(canonical.encode()).digest()
    return "heldout" if int.from_bytes(digest[:8], "big") % HELDOUT_ONE_IN == 0 else "train"


class ArithmeticSource:
    """An infinite deterministic stream of problems with random access.

    Args:
        seed: another seed is another stream (of the same problem space).
        levels: the levels to mix, each equally likely; all by default.
        kinds: restrict to these kinds (see `KINDS`); within a level its kinds are equally likely.
        split: `train` or `heldout`.

    Raises:
        ValueError: an unknown level, kind or split, or a level that has none of the kinds asked for.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        levels: Sequence[int] | None = None,
        kinds: Sequence[str] | None = None,
        split: Split = "train",
    ) -> None:
        if split not in ("train", "heldout"):
            raise ValueError(f"arithmetic: split must be 'train' or 'heldout', not {split!r}")
        wanted_levels = LEVELS if levels is None else tuple(dict.fromkeys(levels))
        wanted_kinds = KINDS if kinds is None else tuple(dict.fromkeys(kinds))
        if not wanted_levels or not wanted_kinds:
            raise ValueError("arithmetic: levels and kinds must not be empty")
        for level in wanted_levels:
            if level not in LEVELS:
                raise ValueError(f"arithmetic: no level {level!r}; there are {', '.join(map(str, LEVELS))}")
        for kind in wanted_kinds:
            if kind not in KINDS:
                raise ValueError(f"arithmetic: no kind {kind!r}; there are {', '.join(KINDS)}")
        self._menu: list[tuple[int, list[tuple[str, Maker]]]] = []
        for level in wanted_levels:
            makers = [(kind, MAKERS[level, kind]) for kind in wanted_kinds if (level, kind) in MAKERS]
            if not makers:
                has = ", ".join(kind for at, kind in MAKERS if at == level)
                raise ValueError(f"arithmetic: level {level} has none of the kinds asked for; it has {has}")
            self._menu.append((level, makers))
        self.seed = seed
        self.levels = wanted_levels
        self.kinds = wanted_kinds
        self.split: Split = split

    def at(self, index: int) -> GeneratedProblem:
        """The problem at `index` (0, 1, 2, …), always the same for the same settings.

        Raises:
            IndexError: `index` is negative.
        """
        if index < 0:
            raise IndexError(f"arithmetic: index must be 0 or more, not {index}")
        draw = Draw(random.Random(f"arithmetic/{self.seed}/{self.split}/{index}").random)
        level, makers = draw.pick(self._menu)
        kind, make = draw.pick(makers)
        for _ in range(_MAX_DRAWS):
            draft = make(draw)
            if draft is None:
                continue
            canonical = f"{kind}|{draft.canonical}"
            if split_of(canonical) == self.split:
                break
        else:
            raise ValueError(f"arithmetic: found no {self.split} problem of level {level}, kind {kind}")
        return GeneratedProblem(
            problem_id=f"arithmetic-{level}-{kind}-{hashlib.sha256(draft.text.encode()).hexdigest()[:12]}",
            text=draft.text,
            answer=draft.answer,
            solution=f"{draft.work} \\boxed{{{draft.answer}}}",
            level=level,
            kind=kind,
        )

    def starting_at(self, index: int) -> Iterator[GeneratedProblem]:
        """The stream from `index` on; it never ends."""
        while True:
            yield self.at(index)
            index += 1

    def __iter__(self) -> Iterator[GeneratedProblem]:
        return self.starting_at(0)
