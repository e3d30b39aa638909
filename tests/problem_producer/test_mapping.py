"""Field mappings for rows of any shape, and prompt templates."""

import json
from pathlib import Path
from typing import Any

import pytest

from gristmill.errors import ConfigError
from gristmill.messages import ChatMessage, TestCase
from problem_producer.config import ProblemsConfig
from problem_producer.items import last_boxed
from problem_producer.sources import Rendered, Source, open_sources


def opened(path: Path, rows: list[dict[str, Any]], fields: dict[str, Any] | None = None, **source: Any) -> Source:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    entry = {"spec": f"jsonl:{path}", **({"fields": fields} if fields else {}), **source}
    return open_sources(ProblemsConfig.model_validate({"sources": [entry]}))[0]


def only(source: Source) -> Rendered:
    assert (source.size, list(source.faults)) == (1, [])
    return source.problem(0)


def faults(path: Path, good: dict[str, Any], bad: dict[str, Any], fields: dict[str, Any], **source: Any) -> str:
    made = opened(path, [good, bad], fields, **source)
    assert made.size == 1
    (fault,) = made.faults
    assert fault.line == 2
    return fault.error


def test_nested_fields_levels_and_metadata(tmp_path: Path) -> None:
    row = {
        "prompt": [{"text": "What is 2 + 3?"}],
        "extra": {"gold": 5, "grade": "Level 4"},
        "key": 17,
        "a.b": "dotted",
        "area": "sums",
    }
    fields = {
        "problem": "prompt.0.text",
        "answer": "extra.gold",
        "level": "extra.grade",
        "id": "key",
        "topic": "area",
        "metadata": ["a.b", "key"],
    }
    item, prompt = only(opened(tmp_path / "set.jsonl", [row], fields))
    assert (item.text, item.answer, item.difficulty, item.problem_id) == ("What is 2 + 3?", "5", 4.0, "set/17")
    assert item.topic == "sums"
    assert item.metadata.items() >= {"a.b": "dotted", "key": "17", "gold": "5", "line": "1"}.items()
    assert prompt.messages[0].content.startswith("What is 2 + 3?\n")


@pytest.mark.parametrize(
    ("answer", "fields", "expected"),
    [
        (5, {}, "5"),
        (5.0, {}, "5"),
        (0.25, {}, "0.25"),
        ("  x^2 ", {}, "x^2"),
        ("so #### 7", {"answer_after": "####"}, "7"),
        ("a \\boxed{1} b \\boxed{\\frac{1}{2}}", {"answer_boxed": True}, "\\frac{1}{2}"),
    ],
)
def test_answers(tmp_path: Path, answer: Any, fields: dict[str, Any], expected: str) -> None:
    assert only(opened(tmp_path / "a.jsonl", [{"problem": "p", "answer": answer}], fields)).item.answer == expected


@pytest.mark.parametrize(
    ("answer", "fields", "message"),
    [
        (True, {}, "a truth value"),
        (None, {}, "null"),
        ([1], {}, "a list"),
        ("", {}, "is empty"),
        (float("nan"), {}, "nan"),
        ("no mark", {"answer_after": "####"}, "nothing after '####'"),
        ("\\boxed{1", {"answer_boxed": True}, "no \\boxed{}"),
    ],
)
def test_answers_that_are_none(tmp_path: Path, answer: Any, fields: dict[str, Any], message: str) -> None:
    good = {"problem": "p", "answer": "\\boxed{1} #### 2"}
    assert message in faults(tmp_path / "a.jsonl", good, {"problem": "p", "answer": answer}, fields)


def test_boxed() -> None:
    assert last_boxed(r"\boxed{a} then \fbox{ \{b\} {c} }") == r"\{b\} {c}"
    assert last_boxed("nothing") is None
    assert last_boxed(r"\boxed{}") is None


def test_ready_made_chats_are_kept(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
    item, prompt = only(opened(tmp_path / "c.jsonl", [{"chat": chat, "answer": "2"}], {"messages": "chat"}))
    assert prompt.messages == tuple(ChatMessage(**message) for message in chat)
    assert item.identity == "be brief. 1 + 1?"
    bad = {"chat": [{"role": "robot", "content": "x"}], "answer": "2"}
    assert "role 'robot'" in faults(tmp_path / "c.jsonl", {"chat": chat, "answer": 2}, bad, {"messages": "chat"})
    ends = {"chat": [*chat, {"role": "assistant", "content": "2"}], "answer": "2"}
    assert "the last message" in faults(tmp_path / "c.jsonl", {"chat": chat, "answer": 2}, ends, {"messages": "chat"})


def test_code_by_asserts_and_by_cases(tmp_path: Path) -> None:
    row = {"problem": "Add.", "checks": ["assert add(1, 2) == 3"], "setup": "import math", "name": "add"}
    fields = {"kind": "code", "tests": "checks", "test_setup": "setup", "entry_point": "name"}
    item, prompt = only(opened(tmp_path / "c.jsonl", [row], fields))
    assert item.tests is not None
    assert (item.tests.source, item.tests.entry_point) == ("import math\nassert add(1, 2) == 3\n", "add")
    assert "Python code block" in prompt.messages[0].content
    cases = {"problem": "Add.", "checks": [{"input": "1 2\n", "output": "3"}, {"input": "", "expected": "0"}]}
    fields = {"kind": "code", "tests": "checks", "tests_kind": "stdio"}
    item, _ = only(opened(tmp_path / "c.jsonl", [cases], fields))
    assert item.tests is not None
    assert item.tests.cases == (TestCase(input="1 2\n", expected="3"), TestCase(input="", expected="0"))
    assert item.answer is None
    for bad in ([], "text", [1], [{"input": "1"}], [{"input": 1, "output": "1"}]):
        assert "checks" in faults(tmp_path / "c.jsonl", cases, {"problem": "p", "checks": bad}, fields) or bad == [
            {"input": "1"}
        ]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (None, [("user", "2 + 3?\nReason step by step and put the final answer in \\boxed{}.")]),
        ("plain", [("user", "2 + 3?")]),
        ("Q: {{ problem }} ({{ row.hint }})", [("user", "Q: 2 + 3? (add)")]),
        (
            {"system": "You are at level {{ level }}.", "user": "{{ problem }}\n"},
            [("system", "You are at level 1.0."), ("user", "2 + 3?\n")],
        ),
    ],
)
def test_templates(tmp_path: Path, prompt: Any, expected: list[tuple[str, str]]) -> None:
    row = {"problem": "2 + 3?", "answer": 5, "hint": "add", "level": 1}
    _, made = only(opened(tmp_path / "t.jsonl", [row], {"level": "level"}, prompt=prompt))
    assert [(message.role, message.content) for message in made.messages] == expected


def test_a_plain_prompt_has_no_messages(tmp_path: Path) -> None:
    row = {"problem": "2 + 3", "answer": 5}
    _, prompt = only(opened(tmp_path / "t.jsonl", [row], prompt={"plain": "{{ problem }} ="}))
    assert prompt == ((), "2 + 3 =")


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("boxd", "no prompt template 'boxd'; built in are boxed, plain, code"),
        ("{{ problm }}", "uses problm; there are entry_point, level, problem"),
        ("{{ problem", "line 1"),
        ({"user": "ok\n{% if %}"}, "line 2"),
    ],
)
def test_bad_templates_are_refused(tmp_path: Path, prompt: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        opened(tmp_path / "t.jsonl", [{"problem": "p", "answer": 1}], prompt=prompt)


def test_templates_are_strict_and_shut_in(tmp_path: Path) -> None:
    good = {"problem": "p", "answer": 1, "hint": "h"}
    bad = {"problem": "p", "answer": 1}
    message = faults(tmp_path / "t.jsonl", good, bad, {}, prompt="{{ problem }} {{ row.hint }}")
    assert "has no attribute 'hint'" in message
    assert "empty prompt" in faults(tmp_path / "t.jsonl", good, bad, {}, prompt="{{ row.get('hint', '') }}")
    for escape in ("{{ problem.__class__.__mro__ }}", "{{ ''.__class__.__subclasses__() }}", "{{ row.clear() }}"):
        with pytest.raises(ConfigError, match="malformed"):
            opened(tmp_path / "t.jsonl", [good], prompt=escape)
