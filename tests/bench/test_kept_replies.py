"""Replies that are kept: equal requests reach the model once, and failures are not kept."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from bench.real.kept import KeptReplies
from bench.real.meter import Meter
from bench.real.outcome import Server

# Each starts processes or waits for them: CI runs them.
pytestmark = pytest.mark.slow


class Upstream(ThreadingHTTPServer):
    """A server that numbers its replies; its first `refused` requests fail."""

    daemon_threads = True

    def __init__(self, *, refused: int = 0) -> None:
        self.asked = 0
        self.refused = refused
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                upstream.asked += 1
                body = json.dumps({"number": upstream.asked}).encode()
                self.send_response(500 if upstream.asked <= upstream.refused else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def server(self) -> Server:
        return Server(url=f"http://127.0.0.1:{self.server_address[1]}/v1", model="m", key="k")


@pytest.fixture
def upstream(request: pytest.FixtureRequest) -> Iterator[Upstream]:
    served = Upstream(refused=getattr(request, "param", 0))
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    yield served
    served.shutdown()
    served.server_close()
    thread.join()


def ask(meter: Meter, content: str) -> int:
    body = json.dumps({"messages": [{"role": "user", "content": content}]}).encode()
    asked = urllib.request.Request(f"{meter.url}/chat/completions", data=body, method="POST")
    with urllib.request.urlopen(asked, timeout=20) as reply:
        return int(json.load(reply)["number"])


def test_an_equal_request_is_answered_from_the_file(upstream: Upstream, tmp_path: Path) -> None:
    kept = KeptReplies(tmp_path / "kept.db")
    with Meter(upstream.server, seconds=20, kept=kept) as meter:
        said = [ask(meter, "a"), ask(meter, "b"), ask(meter, "a")]

    assert said == [1, 2, 1]
    assert (upstream.asked, kept.served) == (2, 1)
    assert len(meter.exchanges) == 3


def test_another_process_is_answered_from_the_same_file(upstream: Upstream, tmp_path: Path) -> None:
    for _ in range(2):
        kept = KeptReplies(tmp_path / "kept.db")
        with Meter(upstream.server, seconds=20, kept=kept) as meter:
            assert ask(meter, "a") == 1

    assert upstream.asked == 1


@pytest.mark.parametrize("upstream", [1], indirect=True)
def test_a_failure_is_not_kept(upstream: Upstream, tmp_path: Path) -> None:
    with Meter(upstream.server, seconds=20, kept=KeptReplies(tmp_path / "kept.db")) as meter:
        with pytest.raises(urllib.error.HTTPError):
            ask(meter, "a")
        assert ask(meter, "a") == 2
        assert ask(meter, "a") == 2


def test_alone_the_file_refuses_what_it_does_not_have(upstream: Upstream, tmp_path: Path) -> None:
    with Meter(upstream.server, seconds=20, kept=KeptReplies(tmp_path / "kept.db")) as meter:
        ask(meter, "a")
    alone = KeptReplies(tmp_path / "kept.db", alone=True)
    with Meter(upstream.server, seconds=20, kept=alone) as meter:
        assert ask(meter, "a") == 1
        with pytest.raises(urllib.error.HTTPError):
            ask(meter, "b")

    assert (upstream.asked, alone.missed) == (1, 1)


def test_without_a_file_every_request_reaches_the_model(upstream: Upstream) -> None:
    with Meter(upstream.server, seconds=20) as meter:
        assert [ask(meter, "a"), ask(meter, "a")] == [1, 2]
