"""No input costs more than the limits: in a worker by force, in the caller by design."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from math_verifier.api import ANSWER_LIMIT, TEXT_LIMIT, Pending, begin, verify_many
from math_verifier.config import MathPolicy
from math_verifier.pool import MathPool

POLICY = MathPolicy()
LIMIT_S, LIMIT_MB = 2.0, 512
MARGIN_S = 4.0
"""Scheduling on a busy machine."""


def matrix(size: int, entry: str) -> str:
    rows = ("&".join(entry.format(row=row, column=column) for column in range(size)) for row in range(size))
    return "\\begin{pmatrix}" + "\\\\".join(rows) + "\\end{pmatrix}"


DEEP_SUM = "\\sum_{a=1}^{99}" * 12 + "a"
BLOW_UPS: dict[str, tuple[str, str]] = {
    "powers": ("7", "9**9**9"),
    "powers of powers": ("7", "9^{9^{9^9}}"),
    "near powers": ("9^{9^9}", "9^{9^9}+1"),
    "factorials": ("7", "((100!)!)!"),
    "near factorials": ("(10^{10})!", "(10^{10}+1)!"),
    "factorial of a large number": ("7", "99999999!"),
    "sum of factorials": ("7", "+".join(f"{number}!" for number in range(5000, 5300))),
    "powers with a logarithm": ("7", "10^{(5^{5^{5^{5^{5}}}} \\cdot \\log_{10}(5)) - 4}"),
    "long sum": ("7", "\\sum_{k=1}^{1000000000} k^k"),
    "sums in sums": ("7", DEEP_SUM),
    "sums in sums, in both": (DEEP_SUM, DEEP_SUM + "+1"),
    "binomial": ("7", "\\binom{10^{30}}{10^{15}}"),
    "sine of a power": ("7", "\\sin(9^{9^9})"),
    "product": ("7", "\\prod_{k=1}^{1999} (k^k)!"),
    "tower": ("7", "2^{2^{2^{2^{2^{2}}}}}"),
    "floor": ("7", "\\lfloor 10^{10^{10}} \\pi \\rfloor"),
    "expansion": ("x", "(1+x+y+z+a+b+c)^{60}-(1+x+y+z+a+b+d)^{60}"),
    "expansions multiplied": ("(a+b)^{90}(c+d)^{90}", "(b+a)^{90}(d+c)^{90}+1-1"),
    "integral of an expansion": ("x", "\\int_0^1 (1+x+y+z+a+b+c)^{40} dx"),
    "hard integral": ("\\pi", "\\int_0^1 \\frac{\\sin(x^{7}+\\tan x)}{\\sqrt{1+x^{11}\\cos^3 x}} dx"),
    "limit": ("1", "\\lim_{x\\to 0} \\frac{\\sin(\\sin(\\sin(\\sin(\\tan(x)))))^{x^x}}{x^{x^{x}}}"),
    "radicals": ("1", "\\sqrt{2+" * 60 + "2" + "}" * 60),
    "logarithms": ("1", "\\ln(" * 60 + "2" + ")" * 60),
    "matrix": ("1", matrix(40, "x^2+1")),
    "matrices": (matrix(20, "{row}+{column}"), matrix(20, "{column}+{row}")),
    "set": (
        "\\{" + ",".join(f"\\sqrt{{{number}}}" for number in range(250)) + "\\}",
        "\\{" + ",".join(f"\\sqrt{{{number}}}" for number in reversed(range(250))) + "\\}",
    ),
    "intervals": ("\\cup".join(f"({2 * n},{2 * n + 1})" for n in range(300)), "(0,1)"),
    "brackets": ("7", "(" * 10_000 + "7" + ")" * 10_000),
    "braces": ("7", "{" * 10_000 + "7" + "}" * 10_000),
    "open brackets": ("7", "(" * 10_000),
    "digits": ("7", "7" * 100_000),
    "digits on both sides": ("7" * 30_000, "7" * 29_999 + "8"),
    "words": ("east", "east " * 20_000),
    "signs": ("7", "-" * 30_000 + "7"),
    "spaces": ("7", " " * 100_000 + "8"),
    "commas": ("7", "1," * 50_000),
    "polynomial": ("x", "+".join(f"x^{{{number}}}" for number in range(400))),
    "decimals": ("\\frac{1}{7}", "0." + "142857" * 5000),
    "equation": ("x^{500}+y^{500}=1", "y^{500}+x^{500}-1=0"),
    "modulus": ("1", "7^{7^{7^{7}}} \\bmod 10^{9}"),
    "exponent": ("1e999999999", "1e999999998"),
    "base": ("7", "Z" * 3000 + "_{36}"),
    "repeating": ("7", "0.\\overline{" + "3" * 3000 + "}"),
}  # fmt: skip


@pytest.fixture(scope="module")
def peaks(pool: MathPool) -> Iterator[dict[int, int]]:
    """Peak memory of every worker of the pool in MiB, looked at all the time."""
    found: dict[int, int] = {}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            for pid in pool.pids:
                try:
                    status = Path(f"/proc/{pid}/status").read_text()
                except (FileNotFoundError, ProcessLookupError):
                    continue
                peak = [line.split()[1] for line in status.splitlines() if line.startswith("VmPeak")]
                found[pid] = max(found.get(pid, 0), int(peak[0]) // 1024 if peak else 0)

    thread = threading.Thread(target=watch)
    thread.start()
    yield found
    done.set()
    thread.join()


def test_no_input_costs_more_than_its_time_and_memory(pool: MathPool, peaks: dict[int, int]) -> None:
    """Every blow-up both ways round, with ordinary checks between them that are all decided."""
    rows: list[tuple[str, str]] = []
    for gold, answer in BLOW_UPS.values():
        rows += [(gold, answer), ("x+1", f"{len(rows)}-{len(rows)}+1+x"), (answer, gold), ("\\sin^2 x", "1-\\cos^2 x")]
    names = [name for name in BLOW_UPS for _ in range(4)]
    found = list(verify_many(rows, kind="answer", pool=pool))
    over = [(name, result) for name, result in zip(names, found, strict=True) if result.seconds > LIMIT_S + MARGIN_S]
    assert not over
    assert [result.status for result in found[1::2]] == ["correct"] * (len(found) // 2)
    correct = {name for name, result in zip(names[::2], found[::2], strict=True) if result.correct}
    # A limit in time is no verdict, so what must not be here is another "correct".
    assert correct <= {"matrices", "set", "expansions multiplied", "equation"}
    assert peaks
    assert max(peaks.values()) <= LIMIT_MB
    assert pool.broken() is None


PUMPS = [
    "\\boxed{", "\\boxed{1}", "\\boxed", "\\fbox ", "\\[", "\\(", "$", "$$", "**", "\\[x", "(\\\\", "<answer>",
    "<think>", "</think>", "####", "#### ", "\n", " ", "\t\n", "the answer is ", "answer ", "answer: $", "is ",
    "1", "1,", "1,234", "-", "1 ", "{", "}", "\\", "a", ". ", ": ", "½", "²", "\u2009", "\\text{", "\\text{1}",
    "\\left", "<sup>", "'", "<|im_end|>", "Final Answer", "\\text{ is", "and ", "\\quad ", "1/", "=", "%",
]  # fmt: skip


@pytest.mark.parametrize("pump", PUMPS)
@pytest.mark.parametrize("kind", ["completion", "answer"])
def test_finding_an_answer_is_quick_in_texts_of_a_million_characters(
    pump: str, kind: Literal["completion", "answer"]
) -> None:
    """It runs in the caller, on an event loop: CPU time is what counts, whatever else the machine does."""
    for before, after in (("", ""), ("\\boxed{", ""), ("the answer is ", "x")):
        room = TEXT_LIMIT - len(before) - len(after)
        text = before + (pump * (room // len(pump) + 1))[:room] + after
        start = time.thread_time()
        begin("7", text, kind, POLICY)
        assert time.thread_time() - start < LIMIT_S


def test_what_is_over_a_limit_has_a_clear_status() -> None:
    long, longer = "7" * (ANSWER_LIMIT + 1), "7" * (TEXT_LIMIT + 1)
    found = [
        begin(gold, text, "answer", POLICY)
        for gold, text in (("7", long), ("7", longer), (long, "7"), (longer, "7"), ("7", "7" * ANSWER_LIMIT))
    ]
    *over, last = found
    assert isinstance(last, Pending)
    assert [(item.status, item.stage) for item in over if not isinstance(item, Pending)] == [
        ("unparsable", "extract"), ("unparsable", "extract"), ("error", "extract"), ("error", "extract"),
    ]  # fmt: skip
    padded = begin("7", " " * 100_000 + "7", "answer", POLICY)
    assert not isinstance(padded, Pending)
    assert padded.status == "correct"
    for item in over:
        assert not isinstance(item, Pending)
        assert "characters, more than" in item.reason
        assert len(item.extracted or "") <= 4000
