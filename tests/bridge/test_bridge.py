"""The bridge: its protocol, its tokens, its limits, and the places where it listens."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.bridge.environment import environment_of

from tallystick.bridge.protocol import BridgeAnswer, BridgeLeft, BridgeQuery, BridgeRefused
from tallystick.bridge.server import Bridge, BridgeLimits
from tallystick.bridge.sockets import Listener
from tallystick.bridge.tokens import IssuedToken, TokenScope
from tallystick.core.charge import ModelUsage
from tallystick.core.errors import Cancelled, InvalidLimit, UsageError

SCOPE = TokenScope(session="S", run="R", program=3)
LIMITS = BridgeLimits()


@dataclass
class Clock:
    """Stands still until it is moved."""

    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Echo:
    """Answers with what it was asked; `!` fails, `?` waits for `go`."""

    asked: list[BridgeQuery] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    left_behind: int = 0
    go: asyncio.Event = field(default_factory=asyncio.Event)
    more: asyncio.Event = field(default_factory=asyncio.Event)

    async def begun(self, count: int) -> None:
        """Wait until it was asked so often."""
        while len(self.asked) < count:
            self.more.clear()
            await self.more.wait()

    async def __call__(self, query: BridgeQuery) -> BridgeAnswer:
        self.asked.append(query)
        self.more.set()
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0)
            if query.prompt.startswith("?"):
                await self.go.wait()
        except asyncio.CancelledError:
            self.left_behind += 1
            raise
        finally:
            self.at_once -= 1
        if query.prompt.startswith("!"):
            raise BridgeRefused("LlmCallFailed", f"no: {query.prompt}", tokens_used=3)
        return BridgeAnswer(
            response=f"<{query.prompt}>",
            tokens_used=7,
            left=BridgeLeft(tokens=1_000 - 7 * len(self.asked), time_ms=5_000),
            usage=ModelUsage(tokens_in=5, tokens_out=2, reported=True, raw={"made_up": 7}),
        )


def ran(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 30))


@dataclass
class Reply:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: Any

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = self.body["error"]
        return found


class Client:
    """A client that sends whatever it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, raw: bytes) -> None:
        self.writer.write(raw)

    async def reply(self) -> Reply:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:-2])
        raw = await self.reader.readexactly(int(headers["content-length"]))
        return Reply(int(head[0].split()[1]), headers, json.loads(raw))

    async def ended(self) -> bool:
        """Whether nothing more comes."""
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True

    async def ask(self, path: str, body: object, token: str | None, *more: str) -> Reply:
        self.send(request(path, body, token, *more))
        return await self.reply()


def request(path: str, body: object, token: str | None, *more: str) -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(raw)}", *more]
    if token is not None:
        lines.append(f"X-Session-Token: {token}")
    return "\r\n".join([*lines, "", ""]).encode() + raw


@dataclass
class World:
    """A bridge with one token and somebody who answers."""

    bridge: Bridge
    clock: Clock
    echo: Echo
    token: IssuedToken
    clients: list[Client] = field(default_factory=list)

    async def client(self, *, session: str | None = "S") -> Client:
        sock = self.bridge.pair(session=session)
        made = Client(*await asyncio.open_connection(sock=sock))
        self.clients.append(made)
        return made

    async def ask(self, path: str, body: object, token: str | None = "own") -> Reply:
        client = await self.client()
        return await client.ask(path, body, self.token.text if token == "own" else token)


@asynccontextmanager
async def world(scope: TokenScope = SCOPE, **limits: int) -> AsyncIterator[World]:
    clock, echo = Clock(), Echo()
    async with Bridge(limits=BridgeLimits(**limits), clock=clock) as bridge:
        made = World(bridge, clock, echo, bridge.issue(scope, ask=echo))
        try:
            yield made
        finally:
            for each in made.clients:
                each.writer.close()


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


# -- the protocol ------------------------------------------------------------------------------


def test_a_query_is_answered_with_what_it_used_and_what_is_left() -> None:
    async def play() -> None:
        async with world() as here:
            reply = await here.ask("/query", {"prompt": "why?"})

            assert reply.status == 200
            assert reply.body.pop("time_ms") >= 0
            assert reply.body == {
                "response": "<why?>",
                "tokens_used": 7,
                "tokens_remaining": 993,
                "time_remaining_ms": 5_000,
                "figures": "reported",
                "cut": False,
                "usage": {
                    "tokens_in": 5, "tokens_out": 2, "reported": True, "raw": {"made_up": 7},
                },
            }  # fmt: skip

    ran(play())


def test_what_is_asked_for_reaches_whoever_asks() -> None:
    async def play() -> None:
        async with world() as here:
            asked = {"prompt": "x", "model": "small", "temperature": 0.5, "max_tokens": 9}
            await here.ask("/query", asked)
            await here.ask("/query", {"prompt": "y", "model": None})

            assert here.echo.asked == [BridgeQuery(**asked), BridgeQuery(prompt="y")]  # type: ignore[arg-type]

    ran(play())


def test_a_batch_keeps_its_order_and_tells_each_error_in_its_place() -> None:
    async def play() -> None:
        async with world() as here:
            prompts = ["a", "!b", "c", "?d", "e"]
            asking = asyncio.ensure_future(
                here.ask("/query_batched", {"queries": [{"prompt": each} for each in prompts]})
            )
            await here.echo.begun(5)
            here.echo.go.set()
            reply = await asking

            assert reply.status == 200
            told = reply.body["responses"]
            assert [each.get("Ok", {}).get("response", each.get("Err")) for each in told] == [
                "<a>", "no: !b", "<c>", "<?d>", "<e>",
            ]  # fmt: skip
            assert [list(each) for each in told] == [["Ok"], ["Err"], ["Ok"], ["Ok"], ["Ok"]]
            kinds = [each and (each["type"], each["code"]) for each in reply.body["errors"]]
            assert kinds == [None, ("LlmCallFailed", -32000), None, None, None]
            assert reply.body["total_tokens_used"] == 4 * 7 + 3
            assert reply.body["total_time_ms"] >= 0
            assert reply.body["tokens_remaining"] == 965
            assert here.echo.most_at_once == 5

    ran(play())


def test_a_batch_of_ten_is_taken_and_one_of_eleven_is_not() -> None:
    async def play() -> None:
        async with world() as here:
            ten = await here.ask("/query_batched", {"queries": [{"prompt": "x"}] * 10})
            eleven = await here.ask("/query_batched", {"queries": [{"prompt": "x"}] * 11})
            none = await here.ask("/query_batched", {"queries": []})

            assert (ten.status, len(ten.body["responses"])) == (200, 10)
            assert (eleven.status, eleven.error["type"]) == (413, "BatchSizeTooLarge")
            assert "at most 10" in eleven.error["message"]
            assert (none.status, none.body["responses"]) == (200, [])
            assert len(here.echo.asked) == 10

    ran(play())


def test_health_says_ok_and_nothing_else() -> None:
    async def play() -> None:
        async with world() as here:
            client = await here.client()
            for token in ("", "X-Session-Token: wrong\r\n"):
                client.send(f"GET /health HTTP/1.1\r\n{token}\r\n".encode())

                assert (await client.reply()).body == {"status": "ok"}

    ran(play())


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (BridgeRefused("LlmCallFailed", "x"), 502, ("LlmCallFailed", -32000, True)),
        (BridgeRefused("TokenBudgetExceeded", "x"), 402, ("TokenBudgetExceeded", -32010, False)),
        (BridgeRefused("TimeBudgetExceeded", "x"), 402, ("TimeBudgetExceeded", -32011, False)),
        (UsageError("x"), 400, ("ConfigError", -32602, False)),
        (Cancelled("x"), 410, ("Cancelled", -32099, False)),
        (asyncio.CancelledError(), 410, ("Cancelled", -32099, False)),
        (ZeroDivisionError("a secret"), 500, ("Internal", -32000, False)),
    ],
)
def test_an_error_has_its_row_of_the_table_and_a_status(
    error: BaseException, status: int, told: tuple[str, int, bool]
) -> None:
    async def fails(query: BridgeQuery) -> BridgeAnswer:
        raise error

    async def play() -> None:
        async with world() as here:
            token = here.bridge.issue(SCOPE, ask=fails)
            reply = await here.ask("/query", {"prompt": "x"}, token.text)

            assert reply.status == status
            assert set(reply.error) == {"type", "code", "message", "retryable"}
            assert (reply.error["type"], reply.error["code"], reply.error["retryable"]) == told
            assert "secret" not in json.dumps(reply.body)

    ran(play())


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        ({}, "ConfigError", "missing required field `prompt`"),
        ({"prompt": 5}, "ConfigError", "Expected `str`, got `int`"),
        ({"prompt": "x", "max_tokens": 0}, "ConfigError", "max_tokens: at least 1"),
        ({"prompt": "x", "max_tokens": 1.5}, "ConfigError", "max_tokens"),
        ({"prompt": "x", "max_tokens": True}, "ConfigError", "max_tokens"),
        ({"prompt": "x", "temperature": -0.1}, "ConfigError", "temperature"),
        ({"prompt": "x", "temperature": "hot"}, "ConfigError", "temperature"),
        ({"prompt": "x", "top_p": 1}, "ConfigError", "unknown field `top_p`"),
        ({"prompt": "x", "cap": 1}, "ConfigError", "unknown field `cap`"),
        ([], "ConfigError", "Expected `object`"),
        (b"", "CommandParseFailed", "not JSON"),
        (b"{", "CommandParseFailed", "not JSON"),
        (b'{"prompt": "\xff"}', "CommandParseFailed", "not JSON"),
        (b'{"prompt": "\\ud800"}', "CommandParseFailed", "not JSON"),
        (b'{"prompt": "x", "temperature": NaN}', "CommandParseFailed", "not JSON"),
        (b'{"prompt": "x", "temperature": 1e999}', "", "temperature"),
        (b'{"prompt": "x"} {}', "CommandParseFailed", "not JSON"),
    ],
)
def test_a_body_that_is_wrong_is_refused_by_name(body: object, kind: str, says: str) -> None:
    async def play() -> None:
        async with world() as here:
            reply = await here.ask("/query", body)

            assert reply.status == 400
            assert kind in ("", reply.error["type"])
            assert says in reply.error["message"] or kind == ""
            assert here.echo.asked == []

    ran(play())


def test_an_item_that_is_wrong_is_named_by_its_place() -> None:
    async def play() -> None:
        async with world() as here:
            items = [{"prompt": "x"}, {"prompt": "y", "max_tokens": -1}]
            reply = await here.ask("/query_batched", {"queries": items})

            assert "queries[1].max_tokens" in reply.error["message"]
            assert here.echo.asked == []

    ran(play())


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET /query", 405),
        ("GET /query_batched", 405),
        ("POST /health", 405),
        ("DELETE /query", 405),
        ("OPTIONS /query", 405),
        ("GET /", 404),
        ("POST /query/", 404),
        ("POST /query?x=1", 404),
        ("GET /../etc/passwd", 404),
    ],
)
def test_other_methods_and_paths_are_refused(line: str, status: int) -> None:
    async def play() -> None:
        async with world() as here:
            client = await here.client()
            client.send(f"{line} HTTP/1.1\r\nContent-Length: 0\r\n\r\n".encode())
            reply = await client.reply()

            assert (reply.status, reply.error["type"]) == (status, "NotSupported")

    ran(play())


def test_one_connection_serves_many_requests_and_an_error_does_not_end_it() -> None:
    async def play() -> None:
        async with world() as here:
            client = await here.client()
            for prompt, status in (("a", 200), ("!b", 502), ("c", 200)):
                reply = await client.ask("/query", {"prompt": prompt}, here.token.text)

                assert (reply.status, reply.headers["connection"]) == (status, "keep-alive")
            last = await client.ask("/query", {"prompt": "d"}, here.token.text, "Connection: close")

            assert last.headers["connection"] == "close"
            assert await client.ended()

    ran(play())


def test_requests_that_are_sent_at_once_are_answered_in_their_order() -> None:
    async def play() -> None:
        async with world() as here:
            client = await here.client()
            one = [request("/query", {"prompt": f"{n}"}, here.token.text) for n in range(20)]
            client.send(b"".join(one))
            found = [(await client.reply()).body["response"] for _ in one]

            assert found == [f"<{n}>" for n in range(20)]
            assert here.echo.most_at_once == 1

    ran(play())


def test_a_client_that_asks_first_is_told_to_go_on() -> None:
    async def play() -> None:
        async with world() as here:
            client = await here.client()
            whole = request("/query", {"prompt": "x"}, here.token.text, "Expect: 100-continue")
            head, _, body = whole.partition(b"\r\n\r\n")
            client.send(head + b"\r\n\r\n")

            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.send(body)
            assert (await client.reply()).body["response"] == "<x>"

    ran(play())


# -- tokens ------------------------------------------------------------------------------------


def test_a_token_that_is_not_valid_is_refused_and_nobody_is_asked() -> None:
    async def play() -> None:
        async with world() as here:
            own = here.token.text
            for token in (None, "", "x", own[:-1], own + "x", own.swapcase(), "S", "ü" * 40):
                client = await here.client()
                client.send(
                    request("/query", {"prompt": "x"}, token and token.encode().decode("latin-1"))
                )
                reply = await client.reply()

                assert (reply.status, reply.error["type"]) == (401, "InvalidSessionToken")
                assert not token or len(token) < 3 or token not in json.dumps(reply.body)
            assert here.echo.asked == []

    ran(play())


def test_two_tokens_in_one_request_are_none() -> None:
    async def play() -> None:
        async with world() as here:
            client = await here.client()
            twice = f"X-Session-Token: {here.token.text}"

            assert (
                await client.ask("/query", {"prompt": "x"}, here.token.text, twice)
            ).status == 401

    ran(play())


def test_a_token_of_another_session_is_refused_where_that_session_listens() -> None:
    async def play() -> None:
        async with world() as here:
            other = here.bridge.issue(TokenScope(session="T"), ask=here.echo)
            statuses = {}
            for session in ("S", "T", None):
                for name, token in (("S", here.token), ("T", other)):
                    client = await here.client(session=session)
                    reply = await client.ask("/query", {"prompt": "x"}, token.text)
                    statuses[session, name] = reply.status

            assert statuses == {
                ("S", "S"): 200, ("S", "T"): 401, ("T", "S"): 401, ("T", "T"): 200,
                (None, "S"): 200, (None, "T"): 200,
            }  # fmt: skip

    ran(play())


def test_a_token_of_another_bridge_is_refused() -> None:
    async def play() -> None:
        async with world() as here, world() as there:
            assert (await here.ask("/query", {"prompt": "x"}, there.token.text)).status == 401
            assert there.echo.asked == []

    ran(play())


def test_a_token_ends_with_its_time() -> None:
    async def play() -> None:
        async with world() as here:
            short = here.bridge.issue(SCOPE, ask=here.echo, ttl_ms=500)

            here.clock.now += 0.499
            assert (await here.ask("/query", {"prompt": "x"}, short.text)).status == 200
            here.clock.now += 0.001
            assert (await here.ask("/query", {"prompt": "x"}, short.text)).status == 401
            assert (await here.ask("/query", {"prompt": "x"})).status == 200
            here.clock.now += 1_800
            assert (await here.ask("/query", {"prompt": "x"})).status == 401

    ran(play())


def test_a_token_that_is_revoked_ends_what_it_has_under_way() -> None:
    async def play() -> None:
        async with world() as here:
            child = here.bridge.issue(SCOPE, ask=here.echo, parent=here.token.grant)
            asking = [
                asyncio.ensure_future(here.ask("/query", {"prompt": "?x"}, each.text))
                for each in (here.token, child)
            ]
            await here.echo.begun(2)
            here.bridge.revoke(here.token.grant)
            replies = await asyncio.gather(*asking)

            assert [(each.status, each.error["type"]) for each in replies] == [
                (410, "Cancelled")
            ] * 2
            assert here.echo.left_behind == 2
            for each in (here.token, child):
                assert (await here.ask("/query", {"prompt": "x"}, each.text)).status == 401

    ran(play())


def test_a_token_that_ends_while_its_request_comes_asks_nobody() -> None:
    async def play() -> None:
        async with world() as here:
            client = await here.client()
            whole = request("/query", {"prompt": "x"}, here.token.text, "Expect: 100-continue")
            client.send(whole[:-5])
            await client.reader.readuntil(b"\r\n\r\n")
            here.bridge.revoke(here.token.grant)
            client.send(whole[-5:])

            assert (await client.reply()).status == 401
            assert here.echo.asked == []

    ran(play())


def test_a_token_without_a_model_is_told_so() -> None:
    async def play() -> None:
        async with world() as here:
            token = here.bridge.issue(SCOPE, ask=None)
            reply = await here.ask("/query", {"prompt": "x"}, token.text)

            assert (reply.status, reply.error["type"]) == (503, "LlmNotConfigured")

    ran(play())


def test_a_token_says_which_models_and_how_long_a_reply() -> None:
    async def play() -> None:
        scope = TokenScope(session="S", models=frozenset({"small"}), tokens_out_max=100)
        async with world(scope) as here:
            found = {}
            asking: dict[str, dict[str, object]] = {
                "own": {},
                "small": {"model": "small", "max_tokens": 100},
                "large": {"model": "large"},
                "long": {"max_tokens": 101},
            }
            for name, asked in asking.items():
                found[name] = (await here.ask("/query", {"prompt": "x", **asked})).status

            assert found == {"own": 200, "small": 200, "large": 400, "long": 400}
            assert [(each.max_tokens, each.cap) for each in here.echo.asked] == [
                (None, 100), (100, 100),
            ]  # fmt: skip

    ran(play())


def test_an_item_that_its_token_does_not_allow_leaves_the_others() -> None:
    async def play() -> None:
        async with world(TokenScope(session="S", models=frozenset())) as here:
            items = [{"prompt": "a"}, {"prompt": "b", "model": "large"}, {"prompt": "c"}]
            reply = await here.ask("/query_batched", {"queries": items})

            assert [list(each) for each in reply.body["responses"]] == [["Ok"], ["Err"], ["Ok"]]
            assert reply.body["errors"][1]["type"] == "ConfigError"

    ran(play())


def test_depth_counts_those_above_and_not_those_beside() -> None:
    """Thirty side by side are one level; the third one below the other is one too many of two."""

    async def play() -> None:
        async with world(TokenScope(session="S", depth_max=2)) as here:
            chain = [here.token]
            for _ in range(3):
                scope = TokenScope(session="S", depth_max=10)
                above = chain[-1].grant
                chain.append(here.bridge.issue(scope, ask=here.echo, parent=above))
            beside = [
                here.bridge.issue(SCOPE, ask=here.echo, parent=here.token.grant) for _ in range(30)
            ]
            replies = [await here.ask("/query", {"prompt": "x"}, each.text) for each in chain]
            others = [await here.ask("/query", {"prompt": "x"}, each.text) for each in beside]

            assert [each.status for each in replies] == [200, 200, 200, 402]
            assert replies[3].error["type"] == "RecursionDepthExceeded"
            assert replies[3].error["code"] == -32012
            assert {each.status for each in others} == {200}

    ran(play())


def test_what_is_shown_of_a_token_does_not_tell_it() -> None:
    async def play() -> None:
        async with world() as here:
            shown = f"{here.token} {here.token!r} {here.token.grant} {vars(here.bridge)!r}"

            assert here.token.text not in shown
            assert here.token.grant.digest.hex() not in shown
            assert environment_of("fd:3", here.token) == {
                "TALLYSTICK_BRIDGE": "fd:3",
                "TALLYSTICK_BRIDGE_TOKEN": here.token.text,
            }

    ran(play())


# -- limits ------------------------------------------------------------------------------------


def test_who_asks_too_often_is_told_when_to_come_back() -> None:
    async def play() -> None:
        async with world(queries_per_second=2, burst=10) as here:
            batch = {"queries": [{"prompt": "x"}] * 8}
            assert (await here.ask("/query_batched", batch)).status == 200
            refused = await here.ask("/query_batched", batch)

            assert (refused.status, refused.error["retryable"]) == (429, True)
            assert refused.error["retry_after_ms"] == 3_001
            assert refused.headers["retry-after"] == "4"
            assert len(here.echo.asked) == 8
            other = here.bridge.issue(SCOPE, ask=here.echo)
            assert (await here.ask("/query_batched", batch, other.text)).status == 200
            here.clock.now += 3.001
            assert (await here.ask("/query_batched", batch)).status == 200

    ran(play())


def test_requests_of_a_token_over_its_number_wait_for_the_others() -> None:
    async def play() -> None:
        async with world(under_way=3) as here:
            asking = [
                asyncio.ensure_future(here.ask("/query", {"prompt": f"?{n}"})) for n in range(9)
            ]
            await here.echo.begun(3)
            await asyncio.sleep(0.02)
            begun = len(here.echo.asked)
            here.echo.go.set()
            replies = await asyncio.gather(*asking)

            assert begun == 3
            assert here.echo.most_at_once <= 3
            assert sorted(each.body["response"] for each in replies) == [
                f"<?{n}>" for n in range(9)
            ]

    ran(play())


def test_what_takes_too_long_is_left_and_told_and_the_rest_of_a_batch_is_not() -> None:
    async def play() -> None:
        async with world(request_ms=60) as here:
            single = await here.ask("/query", {"prompt": "?x"})
            items = [{"prompt": "a"}, {"prompt": "?b"}, {"prompt": "c"}]
            batch = await here.ask("/query_batched", {"queries": items})

            assert (single.status, single.error["type"]) == (504, "ExecutionTimeout")
            assert single.error["retryable"]
            kinds = [each and each["type"] for each in batch.body["errors"]]
            assert kinds == [None, "ExecutionTimeout", None]
            await asyncio.sleep(0)
            assert here.echo.left_behind == 2

    ran(play())


def test_a_call_that_cannot_be_left_keeps_its_place_but_not_its_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def play() -> None:
        go = asyncio.Event()

        async def deaf(query: BridgeQuery) -> BridgeAnswer:
            while not go.is_set():
                try:
                    await go.wait()
                except asyncio.CancelledError:
                    continue
            raise ValueError

        async with world(request_ms=50, under_way=1) as here:
            token = here.bridge.issue(SCOPE, ask=deaf)
            first = await here.ask("/query", {"prompt": "x"}, token.text)
            second = await here.ask("/query", {"prompt": "x"}, token.text)

            assert (first.status, second.status) == (504, 429)
            go.set()

    ran(play())
    gc.collect()
    assert caplog.records == []


def test_whatever_becomes_of_a_request_its_place_is_free_again() -> None:
    async def play() -> None:
        async with world(under_way=1, burst=10, request_ms=500, body_ms=20, linger_ms=1) as here:
            own = here.token.text
            cut = await here.client()
            cut.send(request("/query", {"prompt": "x"}, own)[:-1])
            statuses = [(await cut.reply()).status]
            for path, body in (
                ("/query", b"{"),
                ("/query", {"prompt": "!x"}),
                ("/query_batched", {"queries": []}),
                ("/query_batched", {"queries": [{"prompt": "x"}] * 11}),
                ("/query_batched", {"queries": [{"prompt": "x"}] * 10}),
                ("/query", {"prompt": "honest"}),
            ):
                statuses.append((await here.ask(path, body)).status)

            # One was taken of the ten that may come at once, and so ten more are too many.
            assert statuses == [408, 400, 502, 200, 413, 429, 200]

    ran(play())


def test_limits_are_whole_numbers_and_a_burst_holds_a_batch() -> None:
    for field_name in ("connections", "under_way", "body_bytes", "request_ms"):
        for given in (0, -1, True, 1.5, None):
            with pytest.raises(InvalidLimit, match=field_name):
                BridgeLimits(**{field_name: given})  # type: ignore[arg-type]
    with pytest.raises(InvalidLimit, match="burst"):
        BridgeLimits(burst=9)
    assert (LIMITS.batch_max, LIMITS.request_ms) == (10, 30_000)


# -- where it listens --------------------------------------------------------------------------


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def over(connecting: Awaitable[Any], token: IssuedToken) -> str:
    reader, writer = await connecting
    reply = await Client(reader, writer).ask("/query", {"prompt": "x"}, token.text)
    writer.close()
    said: str = reply.body["response"]
    return said


def test_a_socket_is_its_owners_alone_and_goes_with_the_bridge(place: Path) -> None:
    async def play() -> None:
        path = place / "private" / "bridge"
        async with world() as here:
            listener = here.bridge.listen_unix(path, session="S")

            assert mode_of(path) == 0o600
            assert mode_of(path.parent) == 0o700
            assert listener.address == f"unix:{path}"
            assert await over(asyncio.open_unix_connection(path), here.token) == "<x>"
        assert not path.exists()

    ran(play())


def test_a_directory_that_others_can_enter_is_refused(place: Path) -> None:
    place.chmod(0o755)
    (place / "taken").write_text("mine")
    (place / "link").symlink_to(place, target_is_directory=True)

    async def play() -> None:
        async with world() as here:
            with pytest.raises(UsageError, match="yours alone"):
                here.bridge.listen_unix(place / "bridge", session="S")
            os.chmod(place, 0o700)
            with pytest.raises(UsageError, match="in use"):
                here.bridge.listen_unix(place / "taken", session="S")
            with pytest.raises(UsageError, match="not a directory"):
                here.bridge.listen_unix(place / "link" / "bridge", session="S")
            with pytest.raises(UsageError, match="at most 107 bytes"):
                here.bridge.listen_unix(place / ("x" * 100), session="S")

    ran(play())
    assert (place / "taken").read_text() == "mine"


def test_a_socket_whose_mode_cannot_be_set_leaves_no_file(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    async def play() -> None:
        async with world() as here:
            with monkeypatch.context() as patch:
                patch.setattr(Path, "chmod", refuse)
                with pytest.raises(UsageError, match="not permitted"):
                    here.bridge.listen_unix(place / "bridge", session="S")

            assert not (place / "bridge").exists()
            here.bridge.listen_unix(place / "bridge", session="S")

    ran(play())


def test_a_socket_that_somebody_put_in_the_place_of_ours_stays(place: Path) -> None:
    async def play() -> None:
        path = place / "bridge"
        async with world() as here:
            here.bridge.listen_unix(path, session="S")
            path.rename(place / "ours")
            path.write_text("another")
        assert path.read_text() == "another"

    ran(play())


def test_over_tcp_it_listens_on_this_machine_only_and_when_asked_to() -> None:
    async def play() -> None:
        async with world() as here:
            listener = here.bridge.listen_tcp(session="S")
            _, host, port = listener.address.split(":")

            assert (host, listener.sock.getsockname()[0]) == ("127.0.0.1", "127.0.0.1")
            assert await over(asyncio.open_connection(host, int(port)), here.token) == "<x>"
            with pytest.raises(UsageError, match="port"):
                here.bridge.listen_tcp(session="S", port=int(port))

    ran(play())


def test_a_socket_that_was_inherited_listening_or_connected_is_served() -> None:
    async def play() -> None:
        async with world() as here:
            listening = socket.create_server(("127.0.0.1", 0))
            where = listening.getsockname()
            found: Listener = here.bridge.listen_on(listening, session="S")
            assert await over(asyncio.open_connection(*where), here.token) == "<x>"
            ours, theirs = socket.socketpair()
            here.bridge.serve(ours, session="S")

            assert await over(asyncio.open_connection(sock=theirs), here.token) == "<x>"
            assert found.address == ""

    ran(play())


def test_a_bridge_that_is_closed_ends_what_is_under_way_and_opens_nothing(place: Path) -> None:
    async def play() -> None:
        async with world() as here:
            client = await here.client()
            client.send(request("/query", {"prompt": "?x"}, here.token.text))
            await here.echo.begun(1)
            await here.bridge.close()
            await here.bridge.close()

            assert here.echo.left_behind == 1
            assert await client.ended()
            refusals: list[Callable[[], object]] = [
                lambda: here.bridge.pair(session="S"),
                lambda: here.bridge.listen_tcp(session="S"),
                lambda: here.bridge.listen_unix(place / "b", session="S"),
            ]
            for each in refusals:
                with pytest.raises(UsageError, match="closed"):
                    each()

    ran(play())
