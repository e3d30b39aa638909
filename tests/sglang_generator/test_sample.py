"""Sampling a file: every row as often as asked, in order, whatever fails on the way."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fake_engine import BASE_TOKEN, FakeEngine
from generator_rig import make_artifact

from gristmill.errors import BadInput, GristmillError
from gristmill.messages import Problem
from sglang_generator.config import GeneratorConfig
from sglang_generator.errors import EngineError
from sglang_generator.prompts import Prompts
from sglang_generator.sample import SampleJob, sample_file

CODE = {"problem_id": "c", "prompt": "def f():", "tests": {"entry": "f"}}


class Sampling:
    """A file of rows, and what sampling it gives."""

    def __init__(self, folder: Path, rows: list[dict[str, Any]]) -> None:
        self.source, self.out = folder / "rows.jsonl", folder / "out.jsonl"
        self.source.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n", encoding="utf-8")
        self.progress: list[tuple[int, int]] = []

    async def run(self, engine: FakeEngine, samples: int = 1, adapter: Path | None = None, **config: Any) -> Any:
        job = SampleJob(
            engine.url + "/", self.source, self.out, samples, adapter, {"max_new_tokens": 4, "temperature": 1.0}
        )
        settings = GeneratorConfig(retry_backoff_s=0.01, **config)
        written = await sample_file(job, settings, lambda done, of: self.progress.append((done, of)))
        lines = [json.loads(line) for line in self.out.read_text(encoding="utf-8").splitlines()]
        assert written == len(lines)
        return lines


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {"problem_id": f"p{number}", "prompt": f"{number} + 1 = ", "answer": str(number)} for number in range(count)
    ]


def test_every_row_is_sampled_in_order(tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[int] = []
    render = Prompts.render

    def counted(prompts: Prompts, problem: Problem) -> list[int]:
        rendered.append(problem.ordinal)
        return render(prompts, problem)

    monkeypatch.setattr(Prompts, "render", counted)

    async def main() -> None:
        sampling = Sampling(tmp_path, [*rows(30), CODE])
        async with FakeEngine(tokenizer, latency_s=0.2) as engine:
            lines = await sampling.run(engine, samples=3, engine_concurrency=20)
            assert engine.seen.most_in_flight == 20
            assert len({body["rid"] for body in engine.seen.samples()}) == len(lines) == 93
        assert [line["id"] for line in lines] == [f"p{n}/{i}" for n in range(30) for i in range(3)] + [
            f"c/{i}" for i in range(3)
        ]
        assert rendered == list(range(1, 32))  # each once, whatever the number of its samples
        first, last = lines[0], lines[-1]
        assert (first["line"], first["gold"], first["completion_tokens"]) == (1, "0", 4)
        assert (last["line"], last["tests"], "gold" in last) == (31, {"entry": "f"}, False)
        assert sampling.progress == [(done, 93) for done in range(1, 94)]
        assert not list(tmp_path.glob("*.partial"))

    asyncio.run(main())


def test_an_adapter_is_loaded_for_the_time_being(tokenizer: str, tmp_path: Path) -> None:
    async def main() -> None:
        sampling = Sampling(tmp_path, rows(2))
        adapter = make_artifact(tmp_path / "adapter", 7)
        async with FakeEngine(tokenizer) as engine:
            bare = await sampling.run(engine)
            adapted = await sampling.run(engine, adapter=adapter)
            assert not engine.adapters
            assert len(engine.seen.unloads) == 1
        assert bare[0]["completion"] != adapted[0]["completion"]
        assert str(BASE_TOKEN) not in adapted[0]["completion"]

    asyncio.run(main())


@pytest.mark.parametrize("fault", ["503", "drop", "short", "abort"])
def test_a_failed_request_is_made_again(tokenizer: str, tmp_path: Path, fault: str) -> None:
    async def main() -> None:
        sampling = Sampling(tmp_path, rows(8))
        async with FakeEngine(tokenizer) as engine:
            engine.faults["/generate"] = [fault, 3]
            lines = await sampling.run(engine, samples=2, engine_concurrency=4)
            assert engine.seen.paths["/generate"] == 16 + 3
        assert [line["id"] for line in lines] == [f"p{n}/{i}" for n in range(8) for i in range(2)]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fault", "config", "error", "message"),
    [
        ("503", {"attempts": 2}, EngineError, "503"),
        ("400", {}, BadInput, "fault"),
        ("hang", {"attempts": 1, "request_timeout_s": 0.2}, EngineError, "no response in time"),
    ],
)
def test_a_failure_for_good_is_an_error_and_leaves_no_file(
    tokenizer: str, tmp_path: Path, fault: str, config: dict[str, Any], error: type[GristmillError], message: str
) -> None:
    async def main() -> None:
        sampling = Sampling(tmp_path, rows(40))
        async with FakeEngine(tokenizer) as engine:
            engine.faults["/generate"] = [fault, 1000]
            with pytest.raises(error, match=message):
                await sampling.run(engine, engine_concurrency=4, **config)
            in_hand = 2 * 4
            assert len(engine.seen.generates) <= in_hand * config.get("attempts", 4) < 40  # the others are given up
        assert not sampling.out.exists()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2"),
        ('{"problem_id": "x", "prompt": "1", "sampling": {"top_p": "much"}}', "line 2: sampling"),
    ],
)
def test_an_unusable_row_is_named(tokenizer: str, tmp_path: Path, line: str, message: str) -> None:
    async def main() -> None:
        sampling = Sampling(tmp_path, rows(1))
        sampling.source.write_text(sampling.source.read_text().strip() + "\n" + line + "\n")
        async with FakeEngine(tokenizer) as engine:
            with pytest.raises(BadInput, match=message):
                await sampling.run(engine)
            assert not engine.seen.generates

    asyncio.run(main())
