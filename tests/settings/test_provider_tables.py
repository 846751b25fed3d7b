"""Headers, query and body fields of a provider: sent with each request, and never shown keys."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.errors import UsageError
from tallystick.core.machine.prompt import Message
from tallystick.model.http import HttpModel
from tallystick.model.pacing import Pacing
from tallystick.model.port import ModelRequest
from tallystick.model.scripted import ScriptedModel
from tallystick.settings.models import open_model
from tallystick.settings.settings import load_settings

# Each starts processes or waits for them: CI runs them.
pytestmark = pytest.mark.slow

REQUEST = ModelRequest(
    messages=(
        Message(role="system", part="system", text="Be brief."),
        Message(role="user", part="task", text="What?"),
    )
)


class Server(HTTPServer):
    """A server of both formats, which keeps what it was sent."""

    asked: list[tuple[str, dict[str, str], dict[str, Any]]]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Server)
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        sent = {name.lower(): value for name, value in self.headers.items()}
        self.server.asked.append((self.path, sent, body))
        reply = {
            "choices": [{"message": {"content": "x"}}],
            "type": "message",
            "content": [{"type": "text", "text": "x"}],
        }
        data = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    made.asked = []
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def asked_by(server: Server, config: Path, fields: str, **environ: str) -> tuple[str, Any, Any]:
    """Return what a provider with these fields is sent."""
    config.write_text(
        f'[providers.work]\nbase_url = "http://127.0.0.1:{server.server_port}"\n{fields}'
    )
    settings = load_settings(environ={"TALLYSTICK_CONFIG": str(config), "HOME": str(config.parent)})
    model = open_model(
        "work:m", settings, pacing=Pacing(), recorded=ScriptedModel.of, environ=environ
    )
    assert isinstance(model, HttpModel)

    async def ask() -> None:
        await model.ask(REQUEST, heard=lambda piece: None)
        await model.close()

    asyncio.run(ask())
    return server.asked[-1]


def test_headers_query_and_fields_are_sent_with_each_request(
    server: Server, tmp_path: Path
) -> None:
    fields = """
        headers = { X-Title = "My app", x-gateway-key = "$GATEWAY" }
        query = { api-version = "2026-01 a" }
        body = { service_tier = "flex", metadata = { team = "search" } }
    """
    path, headers, body = asked_by(server, tmp_path / "c.toml", fields, GATEWAY="k-12345678")

    assert path.endswith("/chat/completions?api-version=2026-01%20a")
    assert (headers["x-title"], headers["x-gateway-key"]) == ("My app", "k-12345678")
    assert (body["service_tier"], body["metadata"]) == ("flex", {"team": "search"})
    assert body["model"] == "m"


def test_the_ends_of_what_a_prompt_repeats_are_marked_for_the_cache(
    server: Server, tmp_path: Path
) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    _, _, plain = asked_by(server, tmp_path / "c.toml", 'dialect = "anthropic"')
    _, _, kept = asked_by(server, tmp_path / "c.toml", 'dialect = "anthropic"\ncache = true')

    assert (plain["system"], "cache_control" in json.dumps(plain)) == ("Be brief.", False)
    assert kept["system"] == [{"type": "text", "text": "Be brief.", **mark}]
    assert kept["messages"][-1]["content"] == [{"type": "text", "text": "What?", **mark}]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ('headers = { Host = "x" }', "providers.work.headers: the header 'Host' cannot be set"),
        ('headers = { "a b" = "x" }', "the header 'a b' cannot be set"),
        ('headers = { x = "a\\nb" }', "the header 'x' needs a line of ASCII text"),
        ("headers = { x = 5 }", "the header 'x' needs a line of ASCII text"),
        ('headers = { Authorization = "Bearer x" }', "a key does not belong in a file"),
        ('headers = { x-api-key = "$ABSENT" }', "the header x-api-key needs the variable ABSENT"),
        ("body = { max_tokens = 5 }", "providers.work.body: the field 'max_tokens' is set by each"),
        ("body = { n = 5 }", "the field 'n' is set by each request"),
        ("body = 5", "providers.work.body"),
        ('query = { "a=b" = "x" }', "the query 'a=b' needs a name"),
        ("query = { a = 1 }", "the query 'a' needs a name and a line of text"),
    ],
)
def test_what_cannot_be_added_is_refused_with_its_place(
    server: Server, tmp_path: Path, fields: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        asked_by(server, tmp_path / "c.toml", fields)
    assert server.asked == []
