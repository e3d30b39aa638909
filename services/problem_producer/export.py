"""Problems to files and to people: what ``gristmill problems`` writes."""

from __future__ import annotations

import json
from pathlib import Path

from gristmill.messages import Problem
from problem_producer.config import ProblemsConfig
from problem_producer.mixing import turns
from problem_producer.sequence import ProblemSequence
from problem_producer.sources import Rendered


def export_problems(config: ProblemsConfig, count: int, out: Path) -> int:
    """Write the first ``count`` problems of the only source (fewer where it has fewer) as JSON lines.

    Distinct problems only: an endless source repeats the small ones, and evaluation must not count them twice.
    Returns how many were written.

    Raises:
        ConfigError: the source cannot be used.
    """
    sequence = ProblemSequence(config, "export")
    size = sequence.sources[0].size
    total = count * _TRIES if size is None else size
    seen: set[str] = set()
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".partial")
    with partial.open("w", encoding="utf-8") as stream:
        for turn in turns([1.0], [total]):
            if len(seen) >= count:
                break
            _, rendered = sequence.rendered(turn)
            if rendered.item.problem_id not in seen:
                seen.add(rendered.item.problem_id)
                stream.write(json.dumps(exported(rendered, sequence.sources[0].name), ensure_ascii=False) + "\n")
    partial.replace(out)
    return len(seen)


_TRIES = 50
"""Problems looked at for each one wanted before an endless source counts as used up."""


def exported(rendered: Rendered, source: str) -> dict[str, object]:
    """One row of an export."""
    item, prompt = rendered
    tests = None
    if item.tests is not None:
        tests = {
            "kind": item.tests.kind,
            "source": item.tests.source,
            "entry_point": item.tests.entry_point,
            "cases": [{"input": case.input, "expected": case.expected} for case in item.tests.cases],
        }
    return {
        "problem_id": item.problem_id,
        "source": source,
        "kind": item.kind,
        "topic": item.topic,
        "level": item.difficulty,
        "messages": [{"role": message.role, "content": message.content} for message in prompt.messages],
        "prompt": prompt.plain,
        "answer": item.answer,
        "tests": tests,
        "solution": item.solution,
    }


def describe(problem: Problem) -> str:
    """A problem as text for a terminal."""
    parts = [f"[{message.role}]\n{message.content}" for message in problem.messages]
    if problem.prompt is not None:
        parts.append(f"[prompt]\n{problem.prompt}")
    if problem.reference is not None:
        parts.append(f"[answer]\n{problem.reference}")
    if problem.tests is not None:
        parts.append(f"[tests]\n{problem.tests.source or problem.tests.cases}")
    return "\n\n".join(parts)
