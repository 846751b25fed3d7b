"""The text of a reply is passed on while it comes, to whoever started the run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.client import Session
from tallystick.core.records import AskModel, ModelReplied, QueryAsked, QueryReplied
from tallystick.ledger.memory import MemoryLedger
from tallystick.model.endpoint import KeyFilter, Secret, without_key
from tallystick.runtime.calls.deltas import TextDelta
from tallystick.runtime.runs.history import records_of
from tallystick.testing.models import ModelDouble, block

KEY = "sk-live-7f3a9c21d4e8b605"
ASKS = "said = llm_query('which?')\nFINAL(said)"


def test_the_deltas_of_a_run_are_the_texts_of_its_replies_and_name_their_calls() -> None:
    heard: list[TextDelta] = []
    model = ModelDouble(block(ASKS), queries="the second")

    with Session(model=model, ledger=MemoryLedger(), config=None) as session:
        run = session.run("Which one?", heard=heard.append)
        records = list(records_of(session.ledger, run.run))

    said = {(each.run, each.call, each.intent, each.item): each.text for each in heard}
    asked = [each for each in records if isinstance(each, AskModel)]
    queried = [each for each in records if isinstance(each, QueryAsked)]
    replied = next(each for each in records if isinstance(each, ModelReplied))
    answered = next(each for each in records if isinstance(each, QueryReplied))
    assert said == {
        (run.run, "turn", asked[0].intent, 0): replied.text,
        (run.run, "query", queried[0].intent, 0): answered.text,
    }
    assert all(each.chars == len(each.text) for each in heard)


def test_who_hears_and_fails_does_not_end_a_run_that_is_paid_for() -> None:
    def heard(delta: TextDelta) -> None:
        raise RuntimeError("the window is closed")

    with Session(
        model=ModelDouble(block("FINAL(1)")), ledger=MemoryLedger(), config=None
    ) as session:
        assert session.run("One?", heard=heard).answer == "1"


@given(st.data())
def test_a_text_that_comes_in_pieces_is_shown_as_it_is_shown_whole(data: st.DataObject) -> None:
    secret = Secret(KEY)
    parts = st.sampled_from([KEY, KEY[:9], KEY[5:], "sk-", "words ", KEY.encode().hex()])
    text = "".join(data.draw(st.lists(parts, max_size=6)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    shown = KeyFilter(secret)

    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    told = [shown.passed(each) for each in pieces]

    # At no moment is a whole key shown.
    assert KEY not in "".join(told)
    assert "".join([*told, shown.rest()]) == without_key(text, secret)


@pytest.mark.parametrize("key", [None, Secret("lm-studio")])
def test_without_a_long_key_nothing_is_held_back(key: Secret | None) -> None:
    shown = KeyFilter(key)

    assert [shown.passed(each) for each in ("lm-st", "udio")] == ["lm-st", "udio"]
    assert shown.rest() == ""
