"""Responses, whole or in pieces: what is read by hand is what h11 reads."""

from __future__ import annotations

import itertools

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_generator.http1 import Response, ResponseReader

PLAIN = b'HTTP/1.1 200 OK\r\ndate: now\r\nContent-Length: 11\r\ncontent-type: application/json\r\n\r\n{"a": true}'
BODY = b'{"a": true}'


def read(data: bytes, cuts: list[int], *, ended: bool = False) -> Response | None:
    """Feed a response in pieces."""
    reader = ResponseReader()
    assert not reader.begun
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    pieces = [data[begin:end] for begin, end in itertools.pairwise(edges) if begin < end]
    for number, piece in enumerate(pieces):
        response = reader.feed(piece)
        if response is not None:
            assert number == len(pieces) - 1
            return response
    return reader.feed(b"") if ended else None


@given(
    status=st.sampled_from([200, 400, 429, 500, 503]),
    body=st.binary(max_size=300),
    cuts=st.lists(st.integers(0, 1000), max_size=6),
    chunked=st.booleans(),
)
def test_pieces_do_not_matter(status: int, body: bytes, cuts: list[int], chunked: bool) -> None:
    if chunked:
        middle = len(body) // 2
        parts = [part for part in (body[:middle], body[middle:]) if part]
        sent = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        data = b"HTTP/1.1 %d X\r\nTransfer-Encoding: chunked\r\n\r\n%b" % (status, sent)
    else:
        data = b"HTTP/1.1 %d X\r\nserver: uvicorn\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)
    assert read(data, cuts) == Response(status, body, True)


@pytest.mark.parametrize("end", [b"\n\n", b"\n\r\n"])
def test_a_head_that_ends_with_bare_line_feeds_is_read(end: bytes) -> None:
    """h11 takes it, so it must get it: nothing else would end the wait for the usual end."""
    assert read(b"HTTP/1.1 200 OK\nContent-Length: 11" + end + BODY, []) == Response(200, BODY, True)


@pytest.mark.parametrize("cuts", [[], [5, 30, 60], list(range(100))])
@pytest.mark.parametrize(
    ("head", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\nConnection: close\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\nConnection: keep-alive\r\n\r\n", True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n", True),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 11\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\ncontent-length:11\r\nx-content-length: 3\r\n\r\n", True),
        (b"HTTP/1.1 200\r\ncontent-length: 11\r\n\r\n", True),
    ],
)
def test_other_heads(head: bytes, reusable: bool, cuts: list[int]) -> None:
    assert read(head + BODY, cuts) == Response(200, BODY, reusable)


def test_a_body_that_the_end_of_the_connection_ends() -> None:
    data = b"HTTP/1.1 200 OK\r\n\r\n" + BODY
    assert read(data, [3, 40]) is None
    assert read(data, [3, 40], ended=True) == Response(200, BODY, False)


def test_a_connection_with_bytes_that_nobody_asked_for_is_not_used_again() -> None:
    assert ResponseReader().feed(PLAIN + b"HTTP/1.1 200 OK\r\n") == Response(200, BODY, False)


@pytest.mark.parametrize(
    "data",
    [
        b"<html>nothing of the kind</html>\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\nContent-Length: 12\r\n\r\n" + BODY,
        b"HTTP/1.1 200 OK\r\nContent-Length: eleven\r\n\r\n" + BODY,
        b"x" * 70_000,
    ],
)
def test_what_is_no_response(data: bytes) -> None:
    with pytest.raises(h11.RemoteProtocolError):
        read(data, [])


@pytest.mark.parametrize("end", range(1, len(PLAIN)))
def test_a_response_that_is_cut_off(end: int) -> None:
    with pytest.raises(h11.RemoteProtocolError):
        read(PLAIN[:end], [7, 50], ended=True)
