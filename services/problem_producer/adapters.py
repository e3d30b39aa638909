"""Rows of the public datasets, and of any mapping, to problems.

An adapter is a function of a row that returns an :class:`~problem_producer.items.Item` or raises
:class:`~problem_producer.items.MalformedRow`. It never guesses: a gold answer that has not the form its dataset
promises makes the row malformed.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable

from gristmill.messages import ChatMessage, CodeTests, TestCase
from problem_producer.config import FieldMapping, SourceConfig
from problem_producer.items import (
    Item,
    MalformedRow,
    Row,
    chat_messages,
    checked_text,
    last_boxed,
    level_number,
    lookup,
    optional_text,
    required_text,
    scalar_text,
    text_digest,
    text_lines,
)

Adapter = Callable[[Row], Item]

_GSM8K_GOLD = re.compile(r"[-+]?\$?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
_CALCULATION = re.compile(r"<<[^<>]*>>")
_MBPP_SUBSETS = {"prompt": (1, 10), "test": (11, 510), "validation": (511, 600), "train": (601, 974)}


def adapter_for(source: SourceConfig, label: str) -> Adapter:
    """The adapter of a source; ``label`` begins the ids of rows that have none of their own."""
    if source.kind == "mbpp":
        return lambda row: mbpp(row, challenge=source.challenge)
    named: dict[str, Adapter] = {"gsm8k": gsm8k, "math500": math500, "aime": aime, "humaneval": humaneval}
    if source.kind in named:
        return named[source.kind]
    mapping = source.fields or FieldMapping()
    return lambda row: mapped(row, mapping, label)


def in_subset(source: SourceConfig, item: Item) -> bool:
    """Whether a row of a local file belongs to ``source.subset`` (MBPP's splits go by task id)."""
    if source.kind != "mbpp" or source.hub or source.subset in (None, "all"):
        return True
    low, high = _MBPP_SUBSETS[str(source.subset)]
    return low <= int(item.problem_id.removeprefix("mbpp/")) <= high


def known_subset(source: SourceConfig) -> bool:
    """Whether ``source.subset`` names a split of MBPP."""
    return source.hub or source.subset in (None, "all", *_MBPP_SUBSETS)


def gsm8k(row: Row) -> Item:
    """``question`` and ``answer``; the gold is the number after ``####``, without thousands commas."""
    question, rationale = required_text(row, "question"), required_text(row, "answer")
    before, mark, after = rationale.rpartition("####")
    if not mark:
        raise MalformedRow("field 'answer' has no '####' before the gold")
    raw = after.strip()
    if not _GSM8K_GOLD.fullmatch(raw):
        raise MalformedRow(f"field 'answer': the gold {raw[:40]!r} is not a number")
    gold = raw.replace(",", "").replace("$", "").removeprefix("+")
    work = _CALCULATION.sub("", before).strip()
    return Item(
        problem_id=f"gsm8k/{text_digest(question)}",
        kind="math",
        text=question.strip(),
        answer=gold,
        solution=f"{work}\n\\boxed{{{gold}}}",
        metadata={"gold": raw},
        row=row,
    )


def math500(row: Row) -> Item:
    """``problem``, ``answer``, ``solution``, ``subject``, ``level``, ``unique_id``."""
    answer = scalar_text(row, "answer")
    subject = optional_text(row, "subject")
    return Item(
        problem_id=f"math500/{scalar_text(row, 'unique_id')}",
        kind="math",
        text=required_text(row, "problem").strip(),
        answer=answer,
        solution=optional_text(row, "solution"),
        difficulty=level_number(row, "level"),
        topic=subject,
        metadata={"gold": answer},
        row=row,
    )


def aime(row: Row) -> Item:
    """``id``, ``problem``, ``answer``: an integer from 0 to 999, leading zeros dropped."""
    raw = scalar_text(row, "answer")
    if not (raw.isascii() and raw.isdigit() and int(raw) <= 999):
        raise MalformedRow(f"field 'answer': {raw[:40]!r} is not an integer from 0 to 999")
    return Item(
        problem_id=f"aime/{scalar_text(row, 'id')}",
        kind="math",
        text=required_text(row, "problem").strip(),
        answer=str(int(raw)),
        solution=optional_text(row, "solution"),
        metadata={"gold": raw},
        row=row,
    )


def humaneval(row: Row) -> Item:
    """``task_id``, ``prompt``, ``entry_point``, ``canonical_solution``, ``test``."""
    starter, entry_point = required_text(row, "prompt"), required_text(row, "entry_point")
    if not entry_point.isidentifier():
        raise MalformedRow(f"field 'entry_point' is {entry_point!r}, not a name")
    if not re.search(rf"\bdef\s+{entry_point}\b", starter):
        raise MalformedRow(f"field 'prompt' does not define {entry_point}")
    solution = optional_text(row, "canonical_solution")
    test = required_text(row, "test").strip("\n")
    return Item(
        problem_id=f"humaneval/{scalar_text(row, 'task_id').removeprefix('HumanEval/')}",
        kind="code",
        text=starter.strip("\n"),
        tests=CodeTests(
            kind="assert",
            source=f"{test}\n\ncheck({entry_point})\n",
            entry_point=entry_point,
            prompt=starter,
        ),
        solution=None if solution is None else _fenced(starter + solution),
        starter=starter.strip("\n"),
        metadata={"entry_point": entry_point},
        row=row,
    )


def mbpp(row: Row, *, challenge: bool = False) -> Item:
    """``task_id``, ``text`` (sanitized: ``prompt``), ``code``, ``test_list``, and what the tests need first."""
    task = scalar_text(row, "task_id")
    if not (task.isascii() and task.isdigit()):
        raise MalformedRow(f"field 'task_id' is {task!r}, not a number")
    visible = text_lines(row, "test_list")
    hidden = text_lines(row, "challenge_test_list", needed=False) if challenge else ()
    setup = (*text_lines(row, "test_imports", needed=False), *text_lines(row, "test_setup_code", needed=False))
    code = optional_text(row, "code")
    entry_point = _called_first(visible[0], code or "")
    return Item(
        problem_id=f"mbpp/{int(task)}",
        kind="code",
        text=required_text(row, "text" if "text" in row else "prompt").strip(),
        tests=CodeTests(kind="assert", source="\n".join((*setup, *visible, *hidden)) + "\n", entry_point=entry_point),
        solution=None if code is None else _fenced(code.replace("\r\n", "\n")),
        visible_tests=visible,
        metadata={} if entry_point is None else {"entry_point": entry_point},
        row=row,
    )


def mapped(row: Row, fields: FieldMapping, label: str) -> Item:
    """Any row, by a field mapping."""
    messages: tuple[ChatMessage, ...] = ()
    text = ""
    if fields.messages:
        messages = chat_messages(row, fields.messages)
        basis = "\n".join(message.content for message in messages)
    else:
        basis = text = required_text(row, fields.problem or "problem").strip()
    metadata = {path: _as_text(lookup(row, path), path) for path in fields.metadata}
    answer: str | None = None
    if fields.kind == "math":
        raw = scalar_text(row, fields.answer or "answer")
        answer = _extract(raw, fields)
        metadata["gold"] = raw if len(raw) <= 200 else answer
    tests = _mapped_tests(row, fields) if fields.kind == "code" else None
    return Item(
        problem_id=f"{label}/{scalar_text(row, fields.id) if fields.id else text_digest(basis)}",
        kind=fields.kind,
        text=text,
        messages=messages,
        answer=answer,
        tests=tests,
        solution=optional_text(row, fields.solution),
        difficulty=level_number(row, fields.level),
        topic=optional_text(row, fields.topic),
        starter=optional_text(row, fields.starter),
        visible_tests=tuple(tests.source.splitlines()) if tests is not None and not fields.starter else (),
        metadata=metadata,
        row=row,
    )


def _extract(raw: str, fields: FieldMapping) -> str:
    where = f"field {fields.answer or 'answer'!r}"
    if fields.answer_after:
        _, mark, after = raw.rpartition(fields.answer_after)
        if not mark or not after.strip():
            raise MalformedRow(f"{where} has nothing after {fields.answer_after!r}")
        return after.strip()
    if fields.answer_boxed:
        boxed = last_boxed(raw)
        if boxed is None:
            raise MalformedRow(f"{where} has no \\boxed{{}} with an answer")
        return boxed
    return raw


def _mapped_tests(row: Row, fields: FieldMapping) -> CodeTests:
    path = fields.tests or "tests"
    entry_point = optional_text(row, fields.entry_point)
    if fields.tests_kind == "assert":
        setup = text_lines(row, fields.test_setup) if fields.test_setup else ()
        source = "\n".join((*setup, *text_lines(row, path))) + "\n"
        return CodeTests(kind="assert", source=source, entry_point=entry_point)
    value = lookup(row, path)
    if not isinstance(value, list) or not value:
        raise MalformedRow(f"field {path!r} must be a list of cases with input and expected")
    cases: list[TestCase] = []
    for number, case in enumerate(value):
        if not isinstance(case, dict):
            raise MalformedRow(f"field {path!r}: case {number} is not a mapping with input and expected")
        expected = "expected" if "expected" in case else "output"
        cases.append(
            TestCase(
                input=checked_text(lookup(case, "input"), f"{path}.{number}.input"),
                expected=checked_text(lookup(case, expected), f"{path}.{number}.{expected}"),
            )
        )
    if fields.tests_kind == "call" and entry_point is None:
        raise MalformedRow("tests of kind call need the entry_point")
    return CodeTests(kind=fields.tests_kind, cases=tuple(cases), entry_point=entry_point)


def _as_text(value: object, path: str) -> str:
    if value is None or isinstance(value, bool | int | float):
        return str(value)
    return checked_text(value, path)


def _called_first(test: str, code: str) -> str | None:
    """Name of the function of ``code`` that ``test`` calls; None when the reference code does not tell."""
    defined = set(re.findall(r"^def\s+(\w+)", code, re.MULTILINE))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # escapes that Python warns of are the dataset's business
            tree = ast.parse(test.strip())
    except (SyntaxError, ValueError, RecursionError):
        return None
    calls = (node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
    return next((name for name in calls if name in defined), None)


def _fenced(code: str) -> str:
    return f"```python\n{code.strip(chr(10))}\n```"
