"""Files of rows: malformed ones are found with their line in every form, and the rest goes on."""

import contextlib
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import ConfigError
from problem_producer.config import ProblemsConfig
from problem_producer.items import MAX_TEXT_BYTES, MalformedRow
from problem_producer.rows import JsonArray, open_file, parse_object
from problem_producer.sources import Source, open_sources

GOOD = b'{"question": "1 + 1?", "answer": "2 #### 2"}'


def opened(path: Path, kind: str = "gsm8k", **source: Any) -> Source:
    entry = {"kind": kind, "path": str(path), **source}
    return open_sources(ProblemsConfig.model_validate({"sources": [entry]}))[0]


BROKEN_LINES: list[tuple[bytes, str]] = [
    (b'{"question": "1 + 1?", "answer": ', "not JSON"),
    (b"[1, 2]", "must be a JSON object"),
    (b"null", "must be a JSON object"),
    (b'{"question": "1 + 1?"}', "field 'answer' is missing; the row has question"),
    (b'{"question": "  ", "answer": "#### 2"}', "field 'question' is empty"),
    (b'{"question": 7, "answer": "#### 2"}', "field 'question' is a number, not a text"),
    (b'{"question": null, "answer": "#### 2"}', "field 'question' is null, not a text"),
    (b'{"question": "caf\xe9", "answer": "#### 2"}', "not UTF-8: byte 0xe9"),
    (b'{"question": "\\ud800", "answer": "#### 2"}', "not valid Unicode"),
    (b'{"question": "1 + 1?", "answer": "two"}', "no '####'"),
    (b'{"question": "1 + 1?", "answer": "#### two"}', "not a number"),
    (b'{"question": "1 + 1?", "answer": "#### 1,00"}', "not a number"),
    (b'{"question": "1", "answer": ' + b"9" * 5000 + b"}", "not JSON"),
    (b"[" * 100_000, "not JSON"),
    (b'{"question": "' + b"x" * (MAX_TEXT_BYTES + 1) + b'", "answer": "#### 2"}', "the limit is"),
]


@pytest.mark.parametrize("packed", [False, True])
def test_json_lines_report_each_broken_row_with_its_line(tmp_path: Path, packed: bool) -> None:
    # A byte order mark, blank lines, Windows line ends and no newline at the end are all harmless.
    lines = [b"\xef\xbb\xbf" + GOOD + b"\r", b"", *(broken for broken, _ in BROKEN_LINES), b"   ", GOOD]
    data = b"\n".join(lines)
    path = tmp_path / ("rows.jsonl.gz" if packed else "rows.jsonl")
    path.write_bytes(gzip.compress(data) if packed else data)
    source = opened(path)
    assert source.size == 2
    assert [fault.line for fault in source.faults] == list(range(3, 3 + len(BROKEN_LINES)))
    for fault, (broken, message) in zip(source.faults, BROKEN_LINES, strict=True):
        assert message in fault.error
        assert source.raw(fault) == broken
    assert [source.problem(index).item.metadata["line"] for index in (0, 1)] == ["1", str(len(lines))]


def test_json_arrays_go_on_after_broken_elements(tmp_path: Path) -> None:
    text = b"""[
  {"question": "1 + 1?", "answer": "#### 2"},
  {"question": "broken" "answer": "#### 2"},
  {"question": "1 + 2?", "answer": "#### 3"},
  17,
  {"question": "caf\xe9", "answer": "#### 3"},
  {"answer": "#### 3"},
  {"question": "1 + 3?",
   "answer": "#### 4"}
]"""
    path = tmp_path / "rows.json"
    path.write_bytes(text)
    source = opened(path)
    assert source.size == 3
    assert [source.problem(index).item.answer for index in range(3)] == ["2", "3", "4"]
    assert [(fault.line, fault.error.partition(":")[0].partition(" is ")[0]) for fault in source.faults] == [
        (3, "not JSON"),
        (5, "a row must be a JSON object, not 17"),
        (6, "field 'question'"),
        (7, "field 'question'"),
    ]
    assert b"caf\xe9" in source.raw(source.faults[2])
    assert source.problem(2).item.metadata["line"] == "8"


def test_an_array_that_is_cut_off_keeps_what_was_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.json.gz"
    path.write_bytes(gzip.compress(b"[" + GOOD + b",\n" + GOOD + b',\n{"question": "1'))
    source = opened(path)
    assert source.size == 2
    assert [fault.line for fault in source.faults] == [3]
    path.write_bytes(gzip.compress(b"[" + GOOD + b","))
    assert opened(path).faults[0].error == "the file ends before the array does"


@given(
    st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.none() | st.lists(st.text()))), st.integers(0, 2)
)
def test_arrays_are_read_as_the_json_library_reads_them(rows: list[dict[str, Any]], indent: int) -> None:
    text = json.dumps(rows, indent=indent or None, ensure_ascii=bool(indent)).encode(errors="surrogatepass")
    store = JsonArray("rows", text)
    if b"\xed" in text and not indent:
        return  # lone surrogates are no JSON in UTF-8
    assert [store.row(index) for index in range(len(store))] == rows


def test_json_files_of_lines_are_recognised(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_bytes(GOOD + b"\n" + GOOD + b"\nnonsense\n")
    source = opened(path)
    assert (source.size, [fault.line for fault in source.faults]) == (2, [3])


def test_parquet_reports_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    questions = pa.array([b"1 + 1?", b"caf\xe9", None, b"1 + 2?"], pa.binary())
    options = pa.compute.CastOptions(target_type=pa.string(), allow_invalid_utf8=True)
    table = pa.table({"question": questions.cast(options=options), "answer": ["#### 2", "#### 3", "#### 3", "#### 3"]})
    pq.write_table(table, path, row_group_size=2)
    source = opened(path)
    assert source.size == 2
    assert [(fault.line, fault.error) for fault in source.faults] == [
        (2, "not UTF-8: byte at 3 of a text column"),
        (3, "field 'question' is null, not a text"),
    ]
    assert source.unit == "row"
    assert source.problem(1).item.answer == "3"
    assert json.loads(source.raw(source.faults[1])) == {"question": None, "answer": "#### 3"}
    assert source.raw(source.faults[0])


def test_files_that_cannot_be_used_are_refused_by_name(tmp_path: Path) -> None:
    cases: list[tuple[str, bytes, str]] = [
        ("rows.csv", b"", "unknown form"),
        ("rows.json", b'"text"', "must hold an array"),
        ("rows.parquet", b"PAR1 nothing", "not a readable Parquet file"),
        ("rows.jsonl.gz", gzip.compress(GOOD * 1000)[:-20], "broken or cut off"),
        ("plain.jsonl.gz", GOOD, "cannot read"),
        ("empty.jsonl", b"\n\n", "nothing usable in .*: no rows"),
        ("wrong.jsonl", b'{"a": 1}\n', "all 1 rows are malformed .line 1: field 'question' is missing"),
    ]
    for name, data, message in cases:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ConfigError, match=message):
            opened(tmp_path / name)
    with pytest.raises(ConfigError, match=r"absent\.jsonl: cannot read the problems: No such file"):
        opened(tmp_path / "absent.jsonl")


def test_random_access_needs_no_order(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"number": {n}, "filler": "{"é" * (n % 50)}"}}\n' for n in range(500)), encoding="utf-8")
    store = open_file(path)
    assert [store.row(n)["number"] for n in (499, 0, 250, 1, 498)] == [499, 0, 250, 1, 498]
    assert [store.line(n) for n in (0, 499)] == [1, 500]


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parser(data: bytes) -> None:
    with contextlib.suppress(MalformedRow):
        assert isinstance(parse_object(data), dict)
    try:
        store = JsonArray("rows", data)
    except ConfigError:
        return
    for index in range(len(store)):
        store.raw(index)
        with contextlib.suppress(MalformedRow):
            store.row(index)


def test_the_digest_follows_the_content(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(GOOD)
    before = opened(path).digest
    assert opened(path).digest == before
    path.write_bytes(GOOD + b"\n" + GOOD)
    assert opened(path).digest != before


def test_a_file_that_changes_under_a_run_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(GOOD + b"\n" + GOOD)
    source = opened(path)
    with path.open("r+b") as stream:
        stream.truncate(10)
    with pytest.raises(ConfigError, match="the file was changed"):
        source.problem(0)
