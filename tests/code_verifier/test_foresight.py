"""Which calls of tests are certain enough to be done ahead."""

from __future__ import annotations

import ast

import pytest

from code_verifier.inside.foresight import calls_of, checked_by
from code_verifier.job import AssertTests, Job
from code_verifier.pool import SandboxPool


@pytest.mark.parametrize(
    ("source", "calls"),
    [
        ("assert f(1) == 2\nassert f(-3, 'a') == 4", [(1,), (-3, "a")]),
        ("assert sorted(f([1, 2])) == [1, 2]", [([1, 2],)]),
        ("assert abs(f(1.5) - 2.0) < 1e-6, 'far'", [(1.5,)]),
        ("'text'\npass\nassert f()[0] == f({1: (2,)})", [(), ({1: (2,)},)]),
        ("assert not f(1)\nassert f(2) == 3 or f(3) == 4\nassert f(5)", [(1,)]),
        ("assert 1 < f(1) < f(2)", []),
        ("assert f(1) if f(2) else f(3)", []),
        ("assert f(x) == 1", []),
        ("assert f(f(1)) == 1", []),
        ("assert f(1)(2) == 3", []),
        ("assert f(1).real == 1", []),
        ("assert f(*[1]) == 1", []),
        ("assert f(a=1) == 1", []),
        ("assert all(f(n) for n in [1])", []),
        ("assert g(f(1)) == 1", []),
        ("assert f(1) == 1\nx = 2\nassert f(2) == 2", [(1,)]),
        ("for n in range(3):\n    assert f(n) == n", []),
    ],
)
def test_calls_of_leading_simple_asserts(source: str, calls: list[tuple[object, ...]]) -> None:
    assert calls_of(ast.parse(source).body, "f") == calls


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def check(c):\n    assert c(1) == 1\n    assert c(2) == 2\ncheck(add)", ("add", [(1,), (2,)])),
        ("def check(c, d=1):\n    assert c(1) == 1\ncheck(add)", None),
        ("@twice\ndef check(c):\n    assert c(1) == 1\ncheck(add)", None),
        ("def check(c): pass\ndef check(c):\n    assert c(1)\ncheck(add)", None),
        ("check(add)", None),
        ("check(add, 1)", None),
    ],
)
def test_calls_of_a_check(source: str, found: object) -> None:
    tree = ast.parse(source)
    assert checked_by(tree.body[-1], tree) == found


COUNTING = "n = 0\ndef f(x):\n    global n\n    n += 1\n    return n"
PATCHED = """
import sys
def f(x):
    return 0
peer = next(k for m in sys.modules.values() for k in vars(m).values() if getattr(k, "__name__", "") == "CandidatePeer")
ANSWERS = peer._answers
def answers(self, requests):
    return REPLY
peer._answers = answers
"""


@pytest.mark.docker
@pytest.mark.parametrize(
    ("program", "tests", "statuses"),
    [
        pytest.param(
            COUNTING, "assert f(0) == 1\nassert f(0) == 2\nassert f(0) == 3", ["passed"] * 3, id="in order, once"
        ),
        pytest.param(
            COUNTING, "assert f(0) == 1\nassert f(0) < 3 < 4\nassert f(0) == 3", ["passed"] * 3, id="then one by one"
        ),
        pytest.param(
            "def f(x):\n    x.append(4)\n    return x",
            "assert f([1]) == [1, 4]\nassert f([]) == [4]",
            ["passed"] * 2,
            id="changed arguments",
        ),
        pytest.param(
            "h = []\ndef f(x):\n    h.append(x)\n    return h",
            "assert f(1) == [1]\nassert f(2) == [1, 2]",
            ["passed"] * 2,
            id="a result that changes later",
        ),
        pytest.param(
            "def f(n):\n    yield from range(n)",
            "assert list(f(2)) == [0, 1]\nassert list(f(1)) == [0]",
            ["passed"] * 2,
            id="generators",
        ),
        pytest.param(
            "def f(n):\n    return 1 // n",
            "assert f(1) == 1\nassert f(0) == 1\nassert f(1) == 1",
            ["passed", "runtime_error"],
            id="exception in its place",
        ),
        pytest.param(
            "import time\ndef f(n):\n    time.sleep(0.06)\n    return n",
            "assert f(1) == 1\nassert f(2) == 2\nassert f(3) == 4",
            ["passed", "passed", "wrong_answer"],
            id="slow calls",
        ),
        pytest.param(
            "def f(n):\n    return 'x' * n",
            "assert len(f(9000000)) == 9000000\nassert len(f(9000001)) == 9000001",
            ["passed"] * 2,
            id="large values",
        ),
        pytest.param(
            "def f(n):\n    while n > 1:\n        pass\n    return n",
            "assert f(1) == 1\nassert f(2) == 2",
            ["time_limit"],
            id="a call that hangs",
        ),
        *(
            pytest.param(
                PATCHED.replace("REPLY", reply),
                "assert f(1) == 1\nassert f(2) == 2",
                ["runtime_error"],
                id=f"answers {name}",
            )
            for name, reply in {
                "too many": "ANSWERS(self, requests)[:-1] + b',1,2,3]'",
                "none": "b'[]'",
                "null": "b'[null]'",
                "no list": "b'{}'",
                "no answer": "b'[\"ok\"]'",
                "endless": "b'[' * 100000",
                "passed": "b'[\"passed\"]'",
            }.items()
        ),
    ],
)
def test_answers_given_ahead(shared_pool: SandboxPool, program: str, tests: str, statuses: list[str]) -> None:
    outcome = shared_pool.run(Job(program, AssertTests(tests, "f"), time_s=3.0 if "time_limit" in statuses else 30.0))
    assert [test.status for test in outcome.tests] == statuses, outcome
