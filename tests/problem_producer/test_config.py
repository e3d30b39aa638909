"""Source specs and the section's own rules."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from problem_producer.config import ProblemsConfig, SourceConfig
from problem_producer.spec import KINDS, parse_levels, parse_spec


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("arithmetic", {"kind": "arithmetic"}),
        ("arithmetic:levels=1-3", {"kind": "arithmetic", "levels": "1-3"}),
        ("arithmetic:levels=1+4,split=heldout,seed=3", {"levels": "1+4", "split": "heldout", "seed": 3}),
        ("arithmetic:topics=addition+product", {"topics": ("addition", "product")}),
        ("gsm8k:data/train.jsonl", {"kind": "gsm8k", "path": "data/train.jsonl"}),
        ("gsm8k:a,b/c,d.jsonl,limit=5,weight=0.5", {"path": "a,b/c,d.jsonl", "limit": 5, "weight": 0.5}),
        ("jsonl:run=3/rows.jsonl", {"kind": "jsonl", "path": "run=3/rows.jsonl"}),
        ("gsm8k:hf", {"kind": "gsm8k", "hub": True}),
        ("gsm8k:hf/test", {"hub": True, "subset": "test"}),
        ("mbpp:hf,config=sanitized,revision=abc", {"hub_config": "sanitized", "hub_revision": "abc"}),
        ("hf:owner/name/validation", {"hub": True, "hub_id": "owner/name", "subset": "validation"}),
        ("hf:owner/name", {"hub_id": "owner/name", "subset": "train"}),
        ("mbpp:m.jsonl,challenge=true,subset=train", {"challenge": True, "subset": "train"}),
        (r"gsm8k:C:\data.jsonl", {"path": r"C:\data.jsonl"}),
    ],
)
def test_specs(spec: str, expected: dict[str, Any]) -> None:
    found = parse_spec(spec)
    assert {key: found.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gsm9k:train.jsonl", "no kind 'gsm9k'"),
        ("", "no kind ''"),
        ("gsm8k", "say where it is, as in gsm8k:PATH"),
        ("gsm8k:,limit=3", "say where it is"),
        ("gsm8k:a.jsonl,limits=3", "no option 'limits'"),
        ("gsm8k:a.jsonl,limit=three", "option limit cannot be 'three'"),
        ("arithmetic:train.jsonl", "'train.jsonl' is not an option"),
        ("arithmetic:levels=3-1", "3 is above 1"),
        ("arithmetic:levels=easy", "not of the form"),
        ("hf:a/b/c/d", "not of the form owner/name"),
        ("gsm8k:a.jsonl,split=test", "split"),
        ("gsm8k:a.jsonl,subset=test", "subset belongs to"),
        ("gsm8k:a.jsonl,levels=1", "levels belongs to arithmetic"),
        ("gsm8k:a.jsonl,weight=0", "greater than 0"),
        ("gsm8k:a.jsonl,weight=inf", "less than or equal to"),
        ("aime:a.jsonl,challenge=true", "challenge belongs to mbpp"),
    ],
)
def test_bad_specs_say_what_is_wrong(spec: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ProblemsConfig.model_validate({"sources": [spec]})


@given(st.text())
def test_no_text_breaks_the_spec_parser(text: str) -> None:
    for spec in (text, f"gsm8k:{text}", f"arithmetic:{text}"):
        with contextlib.suppress(ValueError):
            assert parse_spec(spec)["kind"] in KINDS


def test_keys_win_over_the_spec_and_survive_a_round_trip() -> None:
    entry = {"spec": "gsm8k:a.jsonl,limit=5", "limit": 7, "split": "train"}
    config = ProblemsConfig.model_validate({"sources": [entry, "arithmetic:levels=2"]})
    assert (config.sources[0].limit, config.sources[0].split) == (7, "train")
    assert (config.sources[0].path, config.sources[1].levels) == (Path("a.jsonl"), (2,))
    for mode in ("python", "json"):
        assert ProblemsConfig.model_validate(config.model_dump(mode=mode)) == config
        assert ProblemsConfig.model_validate(config.model_dump(mode=mode, exclude_none=True)) == config


def test_a_single_source_needs_no_list() -> None:
    assert ProblemsConfig.model_validate({"sources": "arithmetic"}) == ProblemsConfig()
    assert ProblemsConfig.model_validate({"sources": {"kind": "arithmetic", "levels": "1-2"}}).sources[0].levels == (
        1,
        2,
    )


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"kind": "gsm8k"}, "give a path, or hub: true"),
        ({"kind": "gsm8k", "path": "a", "hub": True}, "give a path, or hub: true"),
        ({"kind": "hf", "hub": True}, "name the dataset"),
        ({"kind": "gsm8k", "path": "a", "fields": {}}, "knows its fields"),
        ({"kind": "arithmetic", "path": "a"}, "arithmetic takes no path"),
        ({"kind": "jsonl", "path": "a", "fields": {"kind": "code"}}, "needs the field that holds the tests"),
        ({"kind": "jsonl", "path": "a", "fields": {"problem": "p", "messages": "m"}}, "not both"),
        ({"kind": "jsonl", "path": "a", "fields": {"answr": "p"}}, "Extra inputs"),
        ({"kind": "jsonl", "path": "a", "prompt": {"system": "s"}}, "give user"),
        ({"kind": "jsonl", "path": "a", "prompt": {"system": "s", "plain": "p"}}, "give user"),
        ({"spec": "arithmetic", "colour": 1}, "Extra inputs"),
    ],
)
def test_contradictions_are_refused(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SourceConfig.model_validate(entry)
    with pytest.raises(ValidationError, match="at least one source"):
        ProblemsConfig.model_validate({"sources": []})


def test_levels() -> None:
    assert parse_levels("1-3+6+2") == (1, 2, 3, 6)
