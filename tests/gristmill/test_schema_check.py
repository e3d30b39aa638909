"""The contract check finds what breaks the contract, and nothing else."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gristmill.schema_check import check_all
from gristmill.schemas import schema_dir

Change = Callable[[list[dict[str, Any]]], object]


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    """A copy of the schemas whose only release, 9.9.9, is the present state."""
    folder = tmp_path / "schemas"
    folder.mkdir()
    released = folder / "released" / "9.9.9"
    released.mkdir(parents=True)
    for path in schema_dir().glob("*.avsc"):
        shutil.copy(path, folder)
        shutil.copy(path, released)
    return folder


def change(path: Path, edit: Change) -> None:
    raw = json.loads(path.read_text())
    edit(raw["fields"])
    path.write_text(json.dumps(raw))


def field(fields: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(item for item in fields if item["name"] == name)


def test_the_contract_is_sound() -> None:
    assert check_all() == []


def test_an_unchanged_copy_is_sound(contract: Path) -> None:
    assert check_all(contract) == []


NEW = {"name": "novel", "type": "string", "doc": "New."}

BREAKS: list[tuple[Change, str]] = [
    (lambda fields: fields.append(NEW), r"rejection: cannot read records of 9\.9\.9: .*novel"),
    (lambda fields: fields.remove(field(fields, "who")), r"rejection: cannot be read by 9\.9\.9: .*who"),
    (lambda fields: field(fields, "lag").update(type="string", default=""), r"rejection: cannot read records of"),
    (lambda fields: field(fields, "ordinal").update(type="int"), r"cannot read records of 9\.9\.9"),
    (lambda fields: field(fields, "lengths").update(type={"type": "array", "items": "long"}), r"cannot be read by"),
    (lambda fields: field(fields, "why")["type"]["symbols"].append("bored"), r"cannot be read by 9\.9\.9: .*bored"),
    (
        lambda fields: field(fields, "why")["type"]["symbols"].remove("stale"),
        r"cannot read records of 9\.9\.9: .*stale",
    ),
    (lambda fields: field(fields, "who").pop("doc"), r"rejection: Rejection\.who has no doc"),
    (lambda fields: field(fields, "why")["type"].pop("doc"), r"rejection: Rejection\.why<RejectionReason> has no doc"),
]


@pytest.mark.parametrize(("edit", "message"), BREAKS, ids=lambda item: item if isinstance(item, str) else "")
def test_what_breaks_the_contract_is_found(contract: Path, edit: Change, message: str) -> None:
    change(contract / "rejection.avsc", edit)
    assert [line for line in check_all(contract) if re.search(message, line)]


def test_a_field_with_a_default_may_come_and_go(contract: Path) -> None:
    change(contract / "rejection.avsc", lambda fields: fields.append({**NEW, "default": ""}))
    problems = check_all(contract)
    assert len(problems) == 1
    assert "rejection: class and schema differ" in problems[0]
    change(contract / "released" / "9.9.9" / "rejection.avsc", lambda fields: fields.append({**NEW, "default": ""}))
    shutil.copy(schema_dir() / "rejection.avsc", contract)
    assert check_all(contract) == []


def test_missing_broken_and_gone_schemas(contract: Path) -> None:
    (contract / "problem.avsc").unlink()
    (contract / "verdict.avsc").write_text("{")
    (contract / "completion.avsc").write_text('"string"')
    (contract / "released" / "9.9.9" / "extra.avsc").write_text(
        '{"type": "record", "name": "Extra", "doc": "d", "fields": []}'
    )
    problems = "\n".join(check_all(contract))
    assert "problem: released in 9.9.9, but gone" in problems
    assert "problem: Problem has no schema" in problems
    assert "verdict.avsc: not an Avro schema" in problems
    assert "completion.avsc: not an Avro schema: ValueError: not the schema of a record" in problems
    assert "extra: released in 9.9.9, but gone" in problems
