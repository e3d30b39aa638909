"""A program and its tests, and what came of them: the words that the parts of the verifier share.

Nothing here knows of Kafka or Docker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

CodeStatus: TypeAlias = Literal[
    "passed",
    "wrong_answer",
    "runtime_error",
    "syntax_error",
    "time_limit",
    "memory_limit",
    "output_limit",
    "no_code",
    "sandbox_error",
]
"""What was found of a program. ``sandbox_error`` means that nothing was: it is never scored."""

Checker: TypeAlias = Literal["exact", "tokens", "float", "custom"]


@dataclass(frozen=True, slots=True)
class Case:
    """One test of kind ``call`` (a JSON array of arguments, a JSON value) or ``stdio`` (input, expected output)."""

    input: str
    expected: str


@dataclass(frozen=True, slots=True)
class AssertTests:
    """Python source of asserts, run by the judge; the names it does not define are the candidate's.

    Attributes:
        entry_point: the function that the program is to define, where it is known. Its name is the program's even if it
            is a builtin's.
        prelude: what the problem itself gives (HumanEval's prompt): imports, constants and whole functions other than
            ``entry_point`` are the judge's own, so that a program cannot redefine what the tests use.
    """

    source: str
    entry_point: str | None = None
    prelude: str = ""


@dataclass(frozen=True, slots=True)
class CallTests:
    """Calls of ``entry_point`` with their expected values, which only the judge sees.

    Attributes:
        entry_point: a function, or ``Class.method`` (an instance is made for each call).
        tolerance: by how much numbers may differ, absolutely or relatively.
    """

    entry_point: str
    cases: tuple[Case, ...]
    tolerance: float = 0.0


@dataclass(frozen=True, slots=True)
class StdioTests:
    """Whole-program runs. ``checker_source`` is the custom checker, run by the judge."""

    cases: tuple[Case, ...]
    checker: Checker = "tokens"
    checker_source: str | None = None


Tests: TypeAlias = AssertTests | CallTests | StdioTests


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may use.

    Attributes:
        time_s: wall-clock seconds of one test (stdio), or of loading and all tests together (assert, call).
        job_s: wall-clock seconds of the whole job.
        memory_bytes: address space of a process, and memory of the container.
        output_bytes: standard output, and standard error, beyond which the program is ended.
        kept_bytes: how much of each is reported.
        processes: processes and threads at a time.
        file_bytes: largest file.
        open_files: open files of a process.
        tmpfs_bytes: size of the only place that can be written.
    """

    time_s: float = 10.0
    job_s: float = 60.0
    memory_bytes: int = 512 << 20
    output_bytes: int = 16 << 20
    kept_bytes: int = 8 << 10
    processes: int = 64
    file_bytes: int = 64 << 20
    open_files: int = 256
    tmpfs_bytes: int = 64 << 20


@dataclass(frozen=True, slots=True)
class Job:
    """A program (as extracted, with what it needs of the prompt in front) and its tests."""

    source: str
    tests: Tests
    stop_at_first_failure: bool = True
    time_s: float | None = None
    """Overrides :attr:`Limits.time_s`."""


@dataclass(frozen=True, slots=True)
class TestOutcome:
    """One test: ``index`` counts from 0; tests after an early stop are missing."""

    __test__ = False  # not a pytest class

    index: int
    status: CodeStatus
    seconds: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found. ``stdout`` and ``stderr`` are capped text with undecodable bytes replaced; ``peak_bytes`` is the
    largest resident size of any process of the program; ``seconds`` is wall time from start to verdict."""

    status: CodeStatus
    reason: str = ""
    tests: tuple[TestOutcome, ...] = ()
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    peak_bytes: int = 0
