"""What an evaluation is made on."""

from __future__ import annotations

from typing import Any

import pytest

from gristmill.local.evaluate import heldout_split
from gristmill.local.options import LineOptions, resolve


@pytest.mark.parametrize(
    ("trained_on", "source", "split"),
    [
        (["gsm8k:data/train.jsonl"], None, "heldout"),
        (["gsm8k:data/train.jsonl"], "gsm8k:data/train.jsonl", "heldout"),
        (["gsm8k:data/train.jsonl"], "jsonl:data/train.jsonl", "heldout"),
        (["gsm8k:data/train.jsonl"], "gsm8k:data/test.jsonl", "all"),
        (["gsm8k:data/train.jsonl"], "gsm8k:data/test.jsonl,split=train", "train"),
        (["gsm8k:data/train.jsonl"], "arithmetic:levels=1", "heldout"),
        (["gsm8k:hf"], "gsm8k:hf", "heldout"),
        (["gsm8k:hf"], "gsm8k:hf/test", "all"),
    ],
)
def test_a_file_that_is_not_trained_on_is_used_whole(trained_on: list[str], source: str | None, split: str) -> None:
    settings: Any = resolve(LineOptions(policy="m", sources=tuple(trained_on)), "run").settings
    assert heldout_split(source, settings.problems.sources) == split
