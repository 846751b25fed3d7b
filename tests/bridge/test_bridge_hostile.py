"""Clients of the bridge that mean no good: what they send is refused, and they hurt nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bridge.test_bridge import Client, Reply, World, place, ran, request, world
from tests.descriptors import new_descriptors, open_descriptors

from tallystick.bridge.protocol import BridgeHead, BridgeRefused, parse_head

pytestmark = pytest.mark.slow

__all__ = ["place"]
HEAD = b"POST /query HTTP/1.1\r\n"


async def first(here: World, raw: bytes, *, eof: bool = False) -> Reply | None:
    """What comes back first, None where the connection is ended without a word."""
    client = await here.client()
    client.send(raw)
    if eof:
        client.writer.write_eof()
    try:
        return await client.reply()
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def serves(here: World) -> bool:
    """Whether an honest client is served."""
    reply = await here.ask("/query", {"prompt": "honest"})
    return reply.status == 200


# -- heads -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        b"\r\n\r\n",
        b"\x00\x01\x02\xff\r\n\r\n",
        b"hello\r\n\r\n",
        b"POST /query\r\n\r\n",
        b"POST /query HTTP/2\r\n\r\n",
        b"POST /query HTTP/1.1 \r\n\r\n",
        b"POST  /query HTTP/1.1\r\n\r\n",
        b"post /query HTTP/1.1\r\n\r\n",
        b"POST query HTTP/1.1\r\n\r\n",
        b"POST http://x/query HTTP/1.1\r\n\r\n",
        b"POST /qu\x00ery HTTP/1.1\r\n\r\n",
        b"\r\nPOST /query HTTP/1.1\r\n\r\n",
        HEAD + b"no colon\r\n\r\n",
        HEAD + b" Folded: x\r\n\r\n",
        HEAD + b"X-Session-Token: a\r\n b\r\n\r\n",
        HEAD + b"Space : x\r\n\r\n",
        HEAD + b": x\r\n\r\n",
        HEAD + b"A: x\nContent-Length: 3\r\n\r\n",
        HEAD + b"A: x\rContent-Length: 3\r\n\r\n",
        HEAD + b"A: \x00\r\n\r\n",
    ],
)
def test_a_head_that_can_be_read_in_two_ways_is_read_in_none(raw: bytes) -> None:
    async def play() -> None:
        async with world() as here:
            reply = await first(here, raw)

            assert reply is not None
            assert (reply.status, reply.error["type"]) == (400, "CommandParseFailed")
            assert reply.headers["connection"] == "close"
            assert await serves(here)

    ran(play())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("Content-Length: 5\r\nContent-Length: 5\r\n", 400),
        ("Content-Length: 5\r\nContent-Length: 6\r\n", 400),
        ("Content-Length: -1\r\n", 400),
        ("Content-Length: +5\r\n", 400),
        ("Content-Length: 0x5\r\n", 400),
        ("Content-Length: 5, 5\r\n", 400),
        ("Content-Length: \r\n", 400),
        ("Content-Length: 99999999999999999999\r\n", 400),
        ("Content-Length: 4194305\r\n", 413),
        ("Content-Length: 999999999999999\r\n", 413),
        ("", 411),
        ("Transfer-Encoding: chunked\r\n", 501),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", 501),
        ("Transfer-Encoding: identity\r\n", 501),
        ("Content-Length: 5\r\nExpect: money\r\n", 501),
    ],
)
def test_a_body_whose_length_is_not_plain_is_not_read(headers: str, status: int) -> None:
    async def play() -> None:
        async with world() as here:
            token = f"X-Session-Token: {here.token.text}\r\n"
            raw = HEAD + f"{token}{headers}\r\n".encode() + b"5\r\nhello\r\n0\r\n\r\n"
            client = await here.client()
            client.send(raw)
            reply = await client.reply()

            assert (reply.status, reply.headers["connection"]) == (status, "close")
            # What stands behind it is not taken for a request of its own.
            assert await client.ended()
            assert here.echo.asked == []
            assert await serves(here)

    ran(play())


def test_a_request_hidden_in_the_body_of_another_is_no_request() -> None:
    async def play() -> None:
        async with world() as here:
            hidden = request("/query", {"prompt": "hidden"}, here.token.text)
            client = await here.client()
            client.send(request("/query", hidden, "wrong"))

            assert (await client.reply()).status == 401
            assert await client.ended()
            assert here.echo.asked == []

    ran(play())


@pytest.mark.parametrize(
    "raw",
    [
        HEAD + b"X: " + b"y" * 20_000 + b"\r\n\r\n",
        HEAD + b"X: y\r\n" * 5_000 + b"\r\n",
        b"A" * 1_000_000,
        b"POST /" + b"a" * 100_000,
        HEAD + b"X: y\r\n" * 150 + b"\r\n",
    ],
)
def test_a_head_that_is_too_long_is_refused_before_it_has_come(raw: bytes) -> None:
    async def play() -> None:
        async with world() as here:
            reply = await first(here, raw)

            assert reply is not None
            assert reply.status == 431
            assert await serves(here)

    ran(play())


@given(st.binary(max_size=300))
def test_whatever_a_head_is_it_is_read_or_refused(raw: bytes) -> None:
    found: BridgeHead | BridgeRefused
    try:
        found = parse_head(raw)
    except BridgeRefused as error:
        found = error

    assert isinstance(found, BridgeHead) or 400 <= found.status <= 501


_WORDS = st.sampled_from(
    [b"POST /query HTTP/1.1", b"\r\n", b"\r\n\r\n", b"Content-Length: ", b"3", b"-", b"\x00", b":"]
)


@given(st.lists(_WORDS | st.binary(max_size=8), max_size=30).map(b"".join))
def test_whatever_is_sent_the_bridge_goes_on(raw: bytes) -> None:
    async def play() -> None:
        async with world(head_ms=200, body_ms=200, linger_ms=200) as here:
            reply = await first(here, raw, eof=True)

            assert reply is None or reply.status in (400, 401, 404, 405, 411, 431, 501)
            assert await serves(here)
            assert [each.prompt for each in here.echo.asked] == ["honest"]

    ran(play())


# -- bodies ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 1_000_000,
        b'{"prompt":' * 100_000,
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"queries": ' + b"[" * 100_000,
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": "x", "max_tokens": ' + b"9" * 1_000_000 + b"}",
        b'{"prompt": "x", "temperature": ' + b"9" * 400_000 + b"}",
        b'{"prompt": "x", "temperature": 1e' + b"9" * 100_000 + b"}",
    ],
)
@pytest.mark.parametrize("path", ["/query", "/query_batched"])
def test_a_body_that_would_blow_up_is_refused(body: bytes, path: str) -> None:
    async def play() -> None:
        async with world() as here:
            reply = await here.ask(path, body)

            assert reply.status == 400
            assert reply.error["type"] in ("CommandParseFailed", "ConfigError")
            assert len(json.dumps(reply.body)) < 5_000
            assert await serves(here)

    ran(play())


def test_a_batch_of_a_hundred_thousand_is_refused_by_its_size() -> None:
    async def play() -> None:
        async with world() as here:
            body = b'{"queries": [' + b",".join([b'{"prompt":""}'] * 100_000) + b"]}"
            reply = await here.ask("/query_batched", body)

            assert reply.error["type"] == "BatchSizeTooLarge"
            assert "100,000" in reply.error["message"]

    ran(play())


def test_a_body_is_not_waited_for_before_its_token_is_known() -> None:
    async def play() -> None:
        async with world() as here:
            raw = HEAD + b"X-Session-Token: wrong\r\nContent-Length: 4000000\r\n\r\n"
            reply = await first(here, raw)

            assert reply is not None
            assert reply.status == 401

    ran(play())


def test_a_client_that_goes_on_sending_still_hears_why_it_is_refused() -> None:
    """Over TCP, to close with something unread would take the reply away."""

    async def play() -> None:
        async with world() as here:
            _, host, port = here.bridge.listen_tcp(session="S").address.split(":")
            raw = request("/query", b"x" * 3_000_000, "wrong")

            def sent() -> bytes:
                with socket.create_connection((host, int(port)), timeout=10) as sock:
                    for at in range(0, len(raw), 100_000):
                        sock.sendall(raw[at : at + 100_000])
                        time.sleep(0.002)
                    return sock.recv(100)

            assert (await asyncio.to_thread(sent)).startswith(b"HTTP/1.1 401 ")

    ran(play())


def test_a_long_reply_arrives_whole_at_a_client_that_reads_slowly() -> None:
    async def play() -> None:
        async with world(linger_ms=1) as here:
            ours, theirs = socket.socketpair()
            theirs.setblocking(False)
            # Then it leaves in small pieces.
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
            here.bridge.serve(ours, session="S")
            asked = request(
                "/query", {"prompt": "x" * 200_000}, here.token.text, "Connection: close"
            )
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(theirs, asked)
            found = b""
            while more := await loop.sock_recv(theirs, 20_000):
                found += more
                await asyncio.sleep(0.002)
            theirs.close()

            head, _, body = found.partition(b"\r\n\r\n")
            assert f"Content-Length: {len(body)}".encode() in head
            assert len(json.loads(body)["response"]) == 200_002

    ran(play())


def test_what_a_body_says_of_its_length_takes_no_memory() -> None:
    async def play() -> None:
        async with world(body_bytes=2**40, body_ms=50, linger_ms=10) as here:
            tracemalloc.start()
            head = f"X-Session-Token: {here.token.text}\r\nContent-Length: {2**39}\r\n\r\n"
            reply = await first(here, HEAD + head.encode() + b"{")
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()

            assert reply is not None
            assert reply.status == 408
            assert most < 5_000_000

    ran(play())


# -- slow clients, and those that go away ------------------------------------------------------


def test_a_head_that_drips_is_ended_by_its_time() -> None:
    """Each byte comes soon after the one before; all of them would take for ever."""

    async def play() -> None:
        async with world(head_ms=100, linger_ms=10) as here:
            client = await here.client()

            async def drip() -> None:
                for byte in request("/query", {"prompt": "x"}, here.token.text):
                    client.send(bytes([byte]))
                    await asyncio.sleep(0.01)

            dripping = asyncio.ensure_future(drip())
            reply = await client.reply()
            dripping.cancel()

            assert (reply.status, reply.error["type"]) == (408, "ExecutionTimeout")
            assert await client.ended()
            assert await serves(here)

    ran(play())


def test_a_body_that_drips_is_ended_by_its_time() -> None:
    async def play() -> None:
        async with world(body_ms=50, linger_ms=10) as here:
            reply = await first(here, request("/query", {"prompt": "x"}, here.token.text)[:-1])

            assert reply is not None
            assert reply.status == 408
            assert here.echo.asked == []

    ran(play())


def test_a_client_that_does_not_read_is_left() -> None:
    async def play() -> None:
        async with world(write_ms=50) as here:
            ours, theirs = socket.socketpair()
            theirs.setblocking(False)
            here.bridge.serve(ours, session="S")
            long = request("/query", {"prompt": "x" * 2_000_000}, here.token.text)
            await asyncio.get_running_loop().sock_sendall(theirs, long)
            await here.echo.begun(1)
            await asyncio.sleep(0.1)

            # What was sent into its buffer is all that ever comes.
            received = 0
            while more := await asyncio.get_running_loop().sock_recv(theirs, 1_000_000):
                received += len(more)
            assert received < 2_000_000
            theirs.close()
            assert await serves(here)

    ran(play())


def test_a_connection_where_nothing_is_asked_is_ended(place: Path) -> None:
    async def play() -> None:
        async with world(idle_ms=50) as here:
            here.bridge.listen_unix(place / "b", session="S")
            client = Client(*await asyncio.open_unix_connection(place / "b"))
            assert (await client.ask("/query", {"prompt": "x"}, here.token.text)).status == 200

            assert await client.ended()
            client.writer.close()

    ran(play())


def test_a_client_that_has_said_all_and_still_listens_is_answered() -> None:
    async def play() -> None:
        async with world() as here:
            client = await here.client()
            client.send(request("/query", {"prompt": "?x"}, here.token.text))
            client.writer.write_eof()
            await here.echo.begun(1)
            here.echo.go.set()

            assert (await client.reply()).body["response"] == "<?x>"
            assert await client.ended()

    ran(play())


@pytest.mark.parametrize("cut", [1, 20, 60, -1])
def test_a_request_that_is_cut_off_asks_nobody(cut: int) -> None:
    async def play() -> None:
        async with world() as here:
            whole = request("/query", {"prompt": "x"}, here.token.text)
            reply = await first(here, whole[:cut], eof=True)

            assert reply is None or reply.status == 400
            assert here.echo.asked == []
            assert await serves(here)

    ran(play())


def test_a_client_that_is_gone_is_not_waited_for() -> None:
    async def play() -> None:
        async with world() as here:
            client = await here.client()
            client.send(request("/query", {"prompt": "?x"}, here.token.text))
            await here.echo.begun(1)
            client.writer.transport.abort()
            here.echo.go.set()

            assert await serves(here)
            assert here.echo.at_once == 0

    ran(play())


def test_many_connections_take_no_more_than_their_number(place: Path) -> None:
    """Eight may be open. Three hundred that say nothing wait outside, and an honest one gets in."""

    async def play() -> None:
        async with world(connections=8, idle_ms=500) as here:
            here.bridge.listen_unix(place / "b", session="S")
            before = open_descriptors()
            silent = []
            for _ in range(300):
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                sock.setblocking(False)
                try:
                    sock.connect(str(place / "b"))
                except BlockingIOError:
                    # As many wait already as the system lets wait.
                    sock.close()
                    continue
                silent.append(sock)
            await asyncio.sleep(0.05)
            most = len(here.bridge._connections)
            theirs = len(new_descriptors(before)) - len(silent)
            for sock in silent:
                sock.close()
            client = Client(*await asyncio.open_unix_connection(place / "b"))
            reply = await client.ask("/query", {"prompt": "x"}, here.token.text)
            client.writer.close()

            assert len(silent) > 100
            assert (most, theirs) == (8, 8)
            assert reply.status == 200

    ran(play())


@pytest.mark.slow
def test_thousands_that_connect_and_say_half_a_word_are_outlived(place: Path) -> None:
    async def play() -> None:
        async with world(connections=32, idle_ms=20, head_ms=20, linger_ms=5) as here:
            here.bridge.listen_unix(place / "b", session="S")

            async def rude(number: int) -> None:
                # Where too many wait already, the connection is none.
                with contextlib.suppress(OSError):
                    reader, writer = await asyncio.open_unix_connection(place / "b")
                    writer.write(b"GET /hea"[: number % 9])
                    if number % 3:
                        await reader.read()
                    writer.transport.abort()

            for _ in range(20):
                await asyncio.gather(*(rude(number) for number in range(150)))
                assert len(here.bridge._connections) <= 32
            client = Client(*await asyncio.open_unix_connection(place / "b"))
            reply = await client.ask("/query", {"prompt": "x"}, here.token.text)
            client.writer.close()

            assert reply.status == 200

    ran(play())


def test_a_bridge_without_a_free_descriptor_goes_on_when_there_is_one(place: Path) -> None:
    async def play() -> None:
        async with world() as here:
            here.bridge.listen_unix(place / "b", session="S")
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.setblocking(False)
            sock.connect(str(place / "b"))
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_descriptors()), hard))
            try:
                await asyncio.sleep(0.02)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            client = Client(*await asyncio.open_connection(sock=sock))
            reply = await client.ask("/query", {"prompt": "x"}, here.token.text)
            client.writer.close()

            assert reply.status == 200

    ran(play())
