"""A record says with what a host call was made: whole for an effect, a short one for a read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tallystick.client import Session
from tallystick.core.json_text import digest
from tallystick.core.records import AttachmentRef, CallHost, HostAnswered, decode_record
from tallystick.core.views.call_text import call_text
from tallystick.ledger.memory import MemoryLedger
from tallystick.model.endpoint import Secret
from tallystick.runtime.calls.functions import host_function
from tallystick.runtime.calls.requests import readable_request
from tallystick.runtime.runs.history import records_of
from tallystick.testing.models import ModelDouble, block

KEY = "sk-live-7f3a9c21d4e8b605"


@host_function()
def pay(invoice: str, amount: float = 0.0, note: str = "") -> str:
    """Pay an invoice."""
    return f"paid {invoice}"


@host_function(policy="read")
def look(key: str) -> str:
    """Look a key up."""
    return key[:10]


def records_after(program: str) -> tuple[Session, str, list[Any]]:
    model = ModelDouble(block(program))
    session = Session(model=model, functions=[pay, look], ledger=MemoryLedger(), config=None)
    run = session.run("Pay the invoice.").run
    return session, run, list(records_of(session.ledger, run))


def test_an_effect_keeps_its_whole_request_and_its_digest_is_that_of_the_request() -> None:
    session, _, records = records_after("pay('INV-101', amount=12.5)\nFINAL('done')")
    session.close()

    (call,) = [each for each in records if isinstance(each, CallHost)]
    assert json.loads(str(call.request)) == ["pay", ["INV-101"], {"amount": 12.5}]
    assert digest(str(call.request).encode()) == call.request_sha256
    (answer,) = [each for each in records if isinstance(each, HostAnswered)]
    assert not isinstance(answer.request, str), "the beginning has it already"


@pytest.mark.parametrize(("chars", "inline"), [(4_000, True), (4_096, False), (100_000, False)])
def test_a_long_request_of_an_effect_is_an_attachment_of_the_run(chars: int, inline: bool) -> None:
    session, _, records = records_after(f"pay('I', note='n' * {chars})\nFINAL('done')")

    (call,) = [each for each in records if isinstance(each, CallHost)]
    assert isinstance(call.request, str) is inline
    if not inline:
        assert isinstance(call.request_ref, AttachmentRef)
        kept = session.attachments_of(records).read(call.request_ref)
        assert json.loads(kept) == ["pay", ["I"], {"note": "n" * chars}]
        assert digest(kept) == call.request_sha256
    session.close()


@pytest.mark.parametrize(("chars", "kept"), [(900, True), (1_024, False)])
def test_a_read_keeps_a_request_of_at_most_1_kib(chars: int, kept: bool) -> None:
    session, _, records = records_after(f"look('k' * {chars})\nFINAL('done')")
    session.close()

    (answer,) = [each for each in records if isinstance(each, HostAnswered)]
    assert isinstance(answer.request, str) is kept


def test_a_run_with_recorded_requests_replays_and_does_not_store_them_again() -> None:
    session, run, records = records_after("pay('I', note='n' * 9000)\nlook('a')\nFINAL('done')")
    before = session.attachments_of(records).references()

    report = session.replay(run)

    assert report.held, report.divergence
    assert session.attachments_of(records).references() == before
    session.close()


def test_a_key_that_a_program_passes_on_is_in_no_record() -> None:
    secret = Secret(KEY)
    session, run, _ = records_after(f"pay('{KEY}', note='{KEY}' * 2000)\nlook('{KEY}')\nFINAL('x')")
    entries = list(session.ledger.read(run))
    calls = [decode_record(each.body) for each in entries if each.body]

    asked = [each.request for each in calls if isinstance(each, CallHost | HostAnswered)]
    assert not any(secret.reveal() in str(each) for each in asked)
    (call,) = [each for each in calls if isinstance(each, CallHost)]
    assert isinstance(call.request_ref, AttachmentRef)
    kept = session.attachments_of(calls).read(call.request_ref)
    assert secret.reveal().encode() not in kept
    assert b"[key]" in kept
    session.close()


def _shapes(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaf, lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(), each, max_size=3)
    )


@given(
    _shapes(st.text().flatmap(lambda around: st.just(f"{around}{KEY}{around}")) | st.integers()),
    st.booleans(),
)
@example([KEY], True)
def test_no_request_that_is_kept_has_a_key_however_it_is_written(value: Any, escaped: bool) -> None:
    secret = Secret(KEY)
    text = json.dumps(["f", [value], {"at": value}], ensure_ascii=True)
    if escaped:
        # JSON may write any character as an escape.
        text = text.replace("sk-live", "\\u0073k-liv\\u0065")

    kept = readable_request(text.encode())

    assert secret.reveal() not in kept
    assert secret.reveal() not in json.dumps(json.loads(kept), ensure_ascii=False)


def test_a_call_is_shown_as_the_python_that_it_was() -> None:
    asked = json.dumps(["mail.send", ["ann@example.org"], {"body": "x", "n": None, "ok": True,
                        "raw": {"$bytes": "aGVsbG8="}, "to": [{"a": 1.5}]}])  # fmt: skip

    assert call_text("mail.send", asked) == (
        'mail.send("ann@example.org", body="x", n=None, ok=True, raw=<5 bytes>, to=[{"a": 1.5}])'
    )
    assert call_text("mail.send", "no JSON") == "mail.send: no JSON"


def test_a_turn_without_tools_stores_nothing_more() -> None:
    session, run, _ = records_after("n = 1\nprint(n)\nFINAL('done')")
    bodies = [each.body or b"" for each in session.ledger.read(run)]
    session.close()

    assert not any(b'"request":' in each or b'"request_ref":' in each for each in bodies)
    assert not any(b'"decided_all":' in each or b'"because":' in each for each in bodies)
