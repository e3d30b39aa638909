"""Problems to files and to people: what ``gristmill problems`` writes."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from gristmill.messages import Problem
from problem_producer.config import ProblemsConfig
from problem_producer.sequence import ProblemSequence
from problem_producer.sources import Rendered


def export_problems(config: ProblemsConfig, count: int, out: Path) -> int:
    """Write the first ``count`` distinct problems of the mix (fewer where it has fewer) as JSON lines.

    Distinct, because an endless source repeats its small problems and an evaluation must not count them twice.
    Returns how many were written.

    Raises:
        ConfigError: a source cannot be used.
    """
    once = {
        "epochs": 0,
        "sources": tuple(source.model_copy(update={"epochs": None}) for source in config.sources),
    }
    sequence = ProblemSequence(config.model_copy(update=once), "export")
    sizes = [source.size for source in sequence.sources]
    sampling = config.sampling.model_dump(exclude={"seed"})
    seen: set[str] = set()
    repeated = 0
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".partial")
    with partial.open("w", encoding="utf-8") as stream:
        for turn in sequence.turns():
            size = sizes[turn.source]
            if len(seen) >= count or repeated >= _DRY:
                break
            rendered = None if size is not None and turn.number >= size else sequence.rendered(turn)[1]
            if rendered is None or rendered.item.problem_id in seen:
                repeated += 1
                continue
            repeated = 0
            seen.add(rendered.item.problem_id)
            row = exported(rendered, sequence.sources[turn.source].name) | {"sampling": sampling}
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
    partial.replace(out)
    return len(seen)


_DRY = 3000
"""Turns in a row without a new problem after which the sources count as used up."""


def exported(rendered: Rendered, source: str) -> dict[str, object]:
    """One row of an export."""
    item, prompt = rendered
    tests = None if item.tests is None else msgspec.to_builtins(item.tests)
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
