"""A server between a peer and the model: it passes requests on, and counts and keeps them.

So tokens and calls are counted the same way for every peer, also where one dies half way, and no
peer is given the key. Closing it closes what is under way: a dead run must not hold the model.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from bench.real.kept import KeptReplies
from bench.real.outcome import Exchange, Server

__all__ = ["Meter"]

_BODY_BYTES_MAX = 64 * 1024 * 1024


class Meter:
    """Listens on the loopback address while it is open.

    With `kept`, a request that was answered before is answered from there, and others are kept.
    """

    def __init__(self, server: Server, *, seconds: int, kept: KeptReplies | None = None) -> None:
        self._server = server
        self._seconds = seconds
        self._kept = kept
        self._guard = threading.Lock()
        self._under_way: set[http.client.HTTPConnection] = set()
        self.exchanges: list[Exchange] = []

    def __enter__(self) -> Meter:
        meter = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                meter._pass_on(self)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing: what matters is kept."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        with self._guard:
            for connection in self._under_way:
                if connection.sock is not None:
                    with contextlib.suppress(OSError):
                        connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    @property
    def url(self) -> str:
        """What a peer is told in place of the model's own URL."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def _pass_on(self, handler: BaseHTTPRequestHandler) -> None:
        length = min(int(handler.headers.get("Content-Length", "0")), _BODY_BYTES_MAX)
        body = handler.rfile.read(length)
        try:
            status, kind, reply = self._answered(handler.path.removeprefix("/v1"), body)
        except (OSError, http.client.HTTPException) as error:
            status, kind = 502, "application/json"
            reply = json.dumps({"error": {"message": f"{type(error).__name__}: {error}"}}).encode()
        exchange = _exchange(body, status, reply)
        with self._guard:
            self.exchanges.append(exchange)
        # A peer that was ended does not read its reply.
        with contextlib.suppress(OSError):
            handler.send_response(status)
            handler.send_header("Content-Type", kind)
            handler.send_header("Content-Length", str(len(reply)))
            handler.end_headers()
            handler.wfile.write(reply)

    def _answered(self, path: str, body: bytes) -> tuple[int, str, bytes]:
        """Return the kept reply to a request, or the model's, which is kept then."""
        if self._kept is None:
            return self._asked(path, body)
        found = self._kept.find(path, body)
        if found is not None:
            return 200, *found
        if self._kept.alone:
            return 400, "application/json", b'{"error": {"message": "no such reply is kept"}}'
        began = time.monotonic()
        status, kind, reply = self._asked(path, body)
        if status == 200:
            self._kept.keep(path, body, kind, reply, seconds=time.monotonic() - began)
        return status, kind, reply

    def _asked(self, path: str, body: bytes) -> tuple[int, str, bytes]:
        parts = urlsplit(self._server.url)
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self._seconds)
        with self._guard:
            self._under_way.add(connection)
        try:
            headers = {"Content-Type": "application/json"}
            if self._server.key:
                headers["Authorization"] = f"Bearer {self._server.key}"
            connection.request("POST", parts.path.rstrip("/") + path, body=body, headers=headers)
            answer = connection.getresponse()
            shown = answer.headers.get("Content-Type", "application/json")
            return answer.status, shown, answer.read()
        finally:
            with self._guard:
                self._under_way.discard(connection)
            connection.close()


def _exchange(body: bytes, status: int, reply: bytes) -> Exchange:
    asked, answered = _read(body), _read(reply)
    messages = [
        (str(each.get("role")), _text(each.get("content"))) for each in asked.get("messages", [])
    ]
    caps = {
        name: asked[name]
        for name in ("max_tokens", "max_completion_tokens", "temperature", "stop")
        if name in asked
    }
    if status != 200:
        said = reply.decode("utf-8", "replace")[:500]
        return Exchange(messages=messages, reply="", note=f"HTTP {status} {said} asked with {caps}")
    choice = (answered.get("choices") or [{}])[0]
    usage = answered.get("usage") or {}
    return Exchange(
        messages=messages,
        reply=_text((choice.get("message") or {}).get("content")),
        tokens_in=int(usage.get("prompt_tokens", 0)),
        tokens_out=int(usage.get("completion_tokens", 0)),
        note=f"{choice.get('finish_reason')} asked with {caps}",
    )


def _read(body: bytes) -> dict[str, Any]:
    try:
        read = json.loads(body)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def _text(content: Any) -> str:  # noqa: ANN401 - a string, a list of parts or nothing
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)
