"""Connections: opened late, used again, closed when they must be, and never too talkative."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.model import fake_server as fake
from tests.model.fake_server import (
    DIALECTS,
    KEY,
    REQUEST,
    End,
    FakeServer,
    ask_once,
    endpoint,
    failed,
    replied,
)

from tallystick.core.errors import UsageError
from tallystick.model.endpoint import Dialect, Endpoint, Secret
from tallystick.model.http import HttpModel
from tallystick.model.pacing import Gate, Pacing
from tallystick.model.port import Model, ModelError, ModelReply

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROXIES, "NO_PROXY", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "NETRC"):
        monkeypatch.delenv(name, raising=False)


async def asked_often(model: Model, times: int) -> list[ModelReply]:
    try:
        return [await model.ask(REQUEST, heard=lambda text: None) for _ in range(times)]
    finally:
        await model.close()


# -- what is sent -------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_key_goes_in_its_header_and_nowhere_else(server: FakeServer, dialect: Dialect) -> None:
    replied(endpoint(server, dialect))

    (seen,) = server.seen
    assert seen.key == KEY
    assert KEY not in seen.path + seen.body.decode()
    assert [value for value in seen.headers.values() if KEY in value] == [
        f"Bearer {KEY}" if dialect == "openai" else KEY
    ]


def test_without_a_key_nobody_s_credentials_are_sent(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password secret-of-netrc\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HOME", str(tmp_path))

    replied(endpoint(server, key=None))

    (seen,) = server.seen
    assert {"authorization", "x-api-key", "cookie"} & set(seen.headers) == set()


def test_replies_are_asked_for_uncompressed_and_cookies_are_not_kept(server: FakeServer) -> None:
    body = json.dumps(fake.openai_body("Hi", finish="stop", usage=None, model="m")).encode()
    server.will(fake.whole(body, set_cookie="a=b; Path=/"))

    asyncio.run(asked_often(HttpModel(endpoint(server)), 2))

    assert [seen.headers["accept-encoding"] for seen in server.seen] == ["identity"] * 2
    assert "cookie" not in server.seen[1].headers


def test_a_redirect_is_not_followed_and_its_target_learns_nothing(server: FakeServer) -> None:
    with FakeServer() as other:
        server.will(fake.redirect(f"{other.url}/chat/completions"))

        error = failed(endpoint(server))

        assert error.reason == "model_unavailable"
        assert other.seen == []


# -- what is read -------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("sent", [True, False])
def test_what_came_decides_how_it_is_read(
    server: FakeServer, dialect: Dialect, asked: bool, sent: bool
) -> None:
    server.will(fake.ok("It is all here.", stream=sent, model="m-2026"))

    reply = replied(endpoint(server, dialect, stream=asked))

    assert reply.text == "It is all here."
    assert (reply.usage.tokens_in, reply.usage.tokens_out) == (11, 3)
    assert reply.usage.raw == fake.usage_of(dialect)
    assert (reply.served_by, reply.cut) == ("m-2026", False)
    assert bool(server.seen[0].json.get("stream")) is asked


@pytest.mark.parametrize("stream", [True, False])
def test_who_listens_is_told_what_has_come(server: FakeServer, stream: bool) -> None:
    told: list[str] = []

    async def main() -> None:
        model = HttpModel(endpoint(server, stream=stream))
        await model.ask(REQUEST, heard=told.append)
        await model.close()

    asyncio.run(main())

    assert "".join(told) == fake.TEXT
    assert (len(told) > 1) is stream


def test_a_compressed_reply_is_refused_unopened(server: FakeServer) -> None:
    bomb = gzip.compress(b"x" * 10_000_000)
    server.will(fake.whole(bomb, content_encoding="gzip"))

    error = failed(endpoint(server))

    assert "a compressed body" in error.message


def test_a_server_that_does_not_hang_up_after_the_end_does_not_hold_the_reply(
    server: FakeServer,
) -> None:
    server.will(fake.streamed(End.STALL, keep=100))
    began = time.monotonic()

    assert replied(endpoint(server, silence_seconds=30.0, total_seconds=60.0)).text == fake.TEXT

    assert time.monotonic() - began < 5.0


def test_a_server_that_resets_after_the_end_does_not_spoil_the_reply(server: FakeServer) -> None:
    server.will(fake.streamed(0.02, End.RESET, keep=100))

    assert replied(endpoint(server)).text == fake.TEXT


# -- connections --------------------------------------------------------------------------------


@pytest.fixture
def far_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers are taken for ones on another machine."""
    monkeypatch.setattr(Endpoint, "keeps_connections", True)


@pytest.mark.usefixtures("far_away")
@pytest.mark.parametrize("stream", [True, False])
def test_a_connection_is_used_again(server: FakeServer, stream: bool) -> None:
    asyncio.run(asked_often(HttpModel(endpoint(server, stream=stream)), 5))

    assert len(server.seen) == 5
    assert server.connections == 1


@pytest.mark.parametrize("stream", [True, False])
def test_on_this_machine_each_request_has_a_connection_of_its_own(
    server: FakeServer, stream: bool
) -> None:
    asyncio.run(asked_often(HttpModel(endpoint(server, stream=stream)), 5))

    assert len(server.seen) == 5
    assert server.connections == 5


def test_a_connection_that_failed_is_not_used_again(server: FakeServer) -> None:
    server.will(fake.stalled(), fake.ok())

    async def main() -> str:
        model = HttpModel(endpoint(server, silence_seconds=0.1))
        with pytest.raises(ModelError):
            await model.ask(REQUEST)
        reply = await model.ask(REQUEST)
        await model.close()
        return reply.text

    assert asyncio.run(main()) == fake.TEXT
    assert server.connections == 2


def test_one_model_serves_one_loop_after_another(server: FakeServer) -> None:
    model = HttpModel(endpoint(server))

    for _ in range(3):
        asyncio.run(asked_often(model, 1))

    assert len(server.seen) == 3


def test_closing_twice_or_unopened_is_harmless(server: FakeServer) -> None:
    async def main() -> None:
        model = HttpModel(endpoint(server))
        await model.close()
        await model.ask(REQUEST)
        await model.close()
        await model.close()

    asyncio.run(main())


async def _cancelled(work: Coroutine[Any, Any, object], server: FakeServer) -> float:
    """Cancel when the server has the request. Returns when that was."""
    task = asyncio.ensure_future(work)
    await asyncio.to_thread(server.arrived.wait, 5.0)
    await asyncio.sleep(0.05)
    task.cancel()
    at = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await task
    return at


@pytest.mark.parametrize("does", [fake.stalled(), fake.silence(), fake.trickle()])
def test_cancelling_closes_the_connection_at_once(server: FakeServer, does: fake.Behaviour) -> None:
    server.will(does)

    async def main() -> float:
        model = HttpModel(endpoint(server, silence_seconds=30.0))
        at = await _cancelled(model.ask(REQUEST), server)
        # Not by closing the client: the connection is gone before.
        assert await asyncio.to_thread(server.seen[0].closed.wait, 2.0)
        await model.close()
        return at

    cancelled_at = asyncio.run(main())

    assert server.seen[0].closed_at - cancelled_at < 1.0


def test_a_deadline_closes_the_connection_too(server: FakeServer) -> None:
    server.will(fake.stalled())

    async def main() -> bool:
        model = HttpModel(endpoint(server, silence_seconds=0.1))
        with pytest.raises(ModelError):
            await model.ask(REQUEST)
        closed = await asyncio.to_thread(server.seen[0].closed.wait, 2.0)
        await model.close()
        return closed

    assert asyncio.run(main())


def test_somebody_else_s_deadline_is_not_mistaken_for_ours(server: FakeServer) -> None:
    server.will(fake.stalled())

    async def main() -> None:
        model = HttpModel(endpoint(server, silence_seconds=30.0))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await model.ask(REQUEST)
        await model.close()

    asyncio.run(main())


# -- the environment ----------------------------------------------------------------------------


def test_what_is_not_encrypted_goes_past_every_proxy(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeServer() as proxy:
        for name in PROXIES:
            monkeypatch.setenv(name, proxy.url.removesuffix("/v1"))

        replied(endpoint(server))

        assert len(server.seen) == 1
        assert proxy.seen == []


def test_a_proxy_is_asked_for_a_tunnel_and_sees_no_key(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", server.url.removesuffix("/v1"))
    server.always(fake.whole(b"", status=403))

    error = failed(endpoint(server, base_url="https://api.example.com/v1"))

    (seen,) = server.seen
    assert (seen.method, seen.path) == ("CONNECT", "api.example.com:443")
    assert KEY not in repr(seen.headers)
    assert (error.reason, error.billed) == ("network_error", False)
    assert "HTTPS_PROXY" in error.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HTTPS_PROXY", "gopher://user:password-of-proxy@proxy.example"),
        ("ALL_PROXY", "socks5://proxy.example:1"),
        ("SSL_CERT_FILE", "no-such-file.pem"),
    ],
)
def test_an_environment_that_cannot_be_used_is_one_line(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)

    error = failed(endpoint(server, base_url="https://api.example.com/v1"))

    assert (error.reason, error.kind, error.billed) == ("network_error", "terminal", False)
    assert name in error.message
    assert "password-of-proxy" not in error.message


def test_nothing_is_imported_or_opened_before_the_first_request() -> None:
    program = (
        "import sys\n"
        "from tallystick.model.endpoint import Endpoint\n"
        "from tallystick.model.http import HttpModel\n"
        "HttpModel(Endpoint(provider='p', dialect='openai', base_url='http://127.0.0.1:1', "
        "model='m'))\n"
        "assert 'httpcore' not in sys.modules and 'anyio' not in sys.modules\n"
    )

    subprocess.run([sys.executable, "-c", program], check=True)


# -- pacing over connections --------------------------------------------------------------------


@pytest.mark.usefixtures("far_away")
def test_so_many_requests_are_open_at_once(server: FakeServer) -> None:
    most, open_ = 0, 0

    async def main() -> None:
        model = HttpModel(endpoint(server, concurrency=3))

        async def one() -> None:
            nonlocal most, open_
            async with model.admitted():
                open_ += 1
                most = max(most, open_)
                await model.ask(REQUEST)
                open_ -= 1

        await asyncio.gather(*(one() for _ in range(12)))
        await model.close()

    asyncio.run(main())

    assert (most, len(server.seen)) == (3, 12)
    assert server.connections <= 3


@pytest.mark.parametrize("name", ["429", "503"])
def test_a_refusal_holds_every_model_of_the_provider(server: FakeServer, name: str) -> None:
    now = 50.0
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    pacing = Pacing(clock=lambda: now, sleep=sleep, jitter=lambda: 0.0)
    server.will(fake.status(int(name), retry_after="7"), fake.ok())
    one, other = (endpoint(server, model=model) for model in ("one", "other"))

    async def main() -> str:
        first, second = (HttpModel(each, pacing.gate(each)) for each in (one, other))
        with pytest.raises(ModelError):
            async with first.admitted():
                await first.ask(REQUEST)
        async with second.admitted():
            reply = await second.ask(REQUEST)
        await first.close()
        await second.close()
        return reply.text

    assert asyncio.run(main()) == fake.TEXT
    assert slept == [pytest.approx(7.0)]


def test_other_failures_hold_nobody(server: FakeServer) -> None:
    server.will(
        fake.status(500),
        fake.reset(),
        fake.status(429, type_="insufficient_quota"),
        fake.status(400),
    )

    async def main() -> int:
        gate = Gate(concurrency=2)
        model = HttpModel(endpoint(server), gate)
        for _ in range(4):
            with pytest.raises(ModelError):
                await model.ask(REQUEST)
        await model.close()
        return gate.epoch

    assert asyncio.run(main()) == 0


def test_an_endpoint_cannot_be_talked_into_sending_the_key_elsewhere(server: FakeServer) -> None:
    with FakeServer() as other:
        with pytest.raises(UsageError):
            endpoint(other, key=Secret(KEY), key_origin=server.url)

        assert other.seen == []


def test_a_model_is_asked_under_its_name(server: FakeServer) -> None:
    model = HttpModel(endpoint(server, model="qwen"))

    assert model.name == "fake:qwen"
    assert asyncio.run(ask_once(endpoint(server, model="qwen"))).served_by == "qwen"
    assert server.seen[0].json["model"] == "qwen"
