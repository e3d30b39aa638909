"""Two runs on the same topics: each generator samples its own run's problems, and none is lost to the other."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fake_engine import FakeEngine
from generator_rig import Line, eventually, make_policy

from support.context import make_problem

RUNS = ("run", "other")


def test_runs_that_share_a_topic_do_not_take_each_others_problems(line: Line, tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeEngine(tokenizer) as engine:
            for run_id in RUNS:
                await line.policy(make_policy(tmp_path, 0, 100, run_id))
                await line.problems(*(make_problem(n, group_size=2, run_id=run_id) for n in range(1, 21)))
            async with line.generator([engine.url]), line.generator([engine.url], run_id="other"):
                wanted = {(run_id, ordinal) for run_id in RUNS for ordinal in range(1, 21)}

                async def all_sampled() -> bool:
                    return {(found.run_id, found.ordinal) for found in await line.completions()} == wanted

                await eventually(all_sampled, what="the problems of both runs")
            assert all(found.policy_run_id == found.run_id for found in await line.completions())

    asyncio.run(main())
