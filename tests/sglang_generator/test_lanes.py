"""Connections to an engine: kept while they are good, and never trusted further than that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sglang_generator import lanes as lanes_module
from sglang_generator.errors import EngineError
from sglang_generator.http1 import Response
from sglang_generator.lanes import Flight, Lanes, Outcome

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
CLOSE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
DROP = b"drop"
HANG = b"hang"


class Server:
    """Answers each request with the next of its lines; ``drop`` closes the connection."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.connections = 0
        self.requests: list[bytes] = []
        self.url = ""
        self.writers: list[asyncio.StreamWriter] = []

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                answer = self.answers.pop(0)
                if answer == HANG:
                    continue
                if answer != DROP:
                    writer.write(answer[:20])
                    await writer.drain()
                    await asyncio.sleep(0.005)
                    writer.write(answer[20:])
                if answer in (DROP, CLOSE) or not answer.endswith((b"{}", b"\r\n\r\n")):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(*answers: bytes) -> AsyncIterator[tuple[Server, Lanes]]:
    server = Server(*answers)
    listener = await asyncio.start_server(server.connection, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    lanes = Lanes(server.url + "/base", 1.0)
    try:
        yield server, lanes
    finally:
        lanes.close()
        listener.close()


def send(lanes: Lanes, timeout_s: float = 5.0) -> tuple[Flight, asyncio.Future[Outcome]]:
    outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    head = lanes.head("/generate", [("Authorization", "Bearer key")])
    return lanes.send(head, b"[1]", timeout_s, outcome.set_result), outcome


async def post(lanes: Lanes, timeout_s: float = 5.0) -> Outcome:
    outcome = await send(lanes, timeout_s)[1]
    assert not lanes.flights
    return outcome


def failed(outcome: Outcome, kind: str, text: str) -> None:
    assert isinstance(outcome, EngineError)
    assert outcome.kind == kind
    assert text in str(outcome)


def test_a_connection_is_used_again_unless_it_is_closed() -> None:
    async def main() -> None:
        async with serving(OK, CHUNKED, OK, CLOSE, OK) as (server, lanes):
            for count, reusable in ((1, True), (1, True), (1, True), (1, False), (2, True)):
                assert await post(lanes) == Response(200, b"{}", reusable)
                assert server.connections == count
            first, *lines = server.requests[0].split(b"\r\n")
            assert first == b"POST /base/generate HTTP/1.1"
            assert b"Content-Length: 3" in lines
            assert b"Authorization: Bearer key" in lines
            assert lines[-1] == b"[1]"
            assert sum(line.startswith(b"Host: 127.0.0.1:") for line in lines) == 1

    asyncio.run(main())


def test_each_request_in_flight_has_a_connection_to_itself() -> None:
    async def main() -> None:
        async with serving(*[OK] * 9) as (server, lanes):
            outcomes = [send(lanes)[1] for _ in range(4)]
            assert len(lanes.flights) == 4
            await asyncio.gather(*outcomes)
            assert server.connections == 4
            await asyncio.gather(*(send(lanes)[1] for _ in range(5)))
            assert server.connections == 5

    asyncio.run(main())


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (DROP, "without a response"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{", "connection failed"),
        (b"<html>this is no HTTP at all, whatever\r\n\r\n.", "connection failed"),
    ],
)
def test_a_failed_exchange_is_the_connections_fault(answer: bytes, text: str) -> None:
    async def main() -> None:
        async with serving(answer, OK) as (server, lanes):
            failed(await post(lanes), "connection", text)
            assert await post(lanes) == Response(200, b"{}", True)
            assert server.connections == 2

    asyncio.run(main())


def test_nobody_listens() -> None:
    async def main() -> None:
        failed(await post(Lanes("http://127.0.0.1:1", 1.0)), "connection", "no connection")

    asyncio.run(main())


def test_a_request_that_takes_too_long_ends_and_so_does_its_connection() -> None:
    async def main() -> None:
        async with serving(HANG, OK, HANG, HANG) as (server, lanes):
            failed(await post(lanes, timeout_s=0.05), "timeout", "no response in time")
            assert await post(lanes) == Response(200, b"{}", True)
            assert server.connections == 2
            outcomes = [send(lanes)[1] for _ in range(2)]
            await asyncio.sleep(0.05)
            lanes.time_out()
            for outcome in outcomes:
                failed(outcome.result(), "timeout", "given up")
            assert not lanes.flights

    asyncio.run(main())


@pytest.mark.parametrize("after_s", [0.0, 0.05])
def test_what_is_given_up_is_never_heard_of_again(after_s: float) -> None:
    async def main() -> None:
        async with serving(HANG, OK) as (server, lanes):
            flight, outcome = send(lanes)
            await asyncio.sleep(after_s)
            flight.give_up()
            flight.give_up()
            server.answers[:] = [OK]
            assert await post(lanes) == Response(200, b"{}", True)
            assert not outcome.done()
            assert not lanes.flights

    asyncio.run(main())


def test_idle_connections_are_dropped_before_or_when_the_server_drops_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with serving(*[OK] * 4) as (server, lanes):
            await post(lanes)
            server.writers[0].close()
            await asyncio.sleep(0.05)
            assert await post(lanes) == Response(200, b"{}", True)
            assert server.connections == 2
            monkeypatch.setattr(lanes_module, "KEEPALIVE_S", 0.01)
            await asyncio.sleep(0.05)
            assert await post(lanes) == Response(200, b"{}", True)
            assert server.connections == 3

    asyncio.run(main())


def test_a_connection_that_ended_right_behind_an_answer_gets_no_request() -> None:
    """The next request leaves in the call that reads the answer, before the loop can hear of the connection's end."""

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n[1]")
        writer.write(OK)
        writer.close()

    async def main() -> None:
        listener = await asyncio.start_server(connection, "127.0.0.1", 0)
        lanes = Lanes(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", 1.0)
        head = lanes.head("/generate", [])
        outcomes: list[Outcome] = []
        over = asyncio.Event()

        def done(outcome: Outcome) -> None:
            outcomes.append(outcome)
            if len(outcomes) < 20:
                lanes.send(head, b"[1]", 5.0, done)
            else:
                over.set()

        lanes.send(head, b"[1]", 5.0, done)
        await over.wait()
        assert outcomes == [Response(200, b"{}", True)] * 20
        listener.close()

    asyncio.run(main())


def test_an_answer_that_came_before_its_request_had_left_ends_the_connection() -> None:
    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)

    async def main() -> None:
        listener = await asyncio.start_server(connection, "127.0.0.1", 0)
        lanes = Lanes(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", 1.0)
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        lanes.send(lanes.head("/generate", []), bytes(64 << 20), 5.0, outcome.set_result)
        assert await outcome == Response(200, b"{}", True)
        assert lanes.take() is None
        listener.close()

    asyncio.run(main())


def test_an_idle_connection_holds_no_answer() -> None:
    async def main() -> None:
        async with serving(OK) as (_, lanes):
            await post(lanes)
            lane = lanes.take()
            assert lane is not None
            assert not lane._reader.begun

    asyncio.run(main())
