"""Model calls of programs: order, side by side, errors by item, schemas, budgets, replay."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time

import pytest
from tests.runtime.run.one_program_model import root

from tallystick.core.charge import RunLimits, nano_usd
from tallystick.core.records import (
    ProgramFinished,
    QueryAsked,
    QueryFailed,
    QueryRefused,
    QueryReplied,
)
from tallystick.model.port import ModelError
from tallystick.runtime.runs.history import records_of
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import (
    NANO_IN,
    PRICING,
    ModelCall,
    ModelDouble,
    by_prompt,
)
from tallystick.testing.runs import Played, play

ROOMY = RunLimits(tokens=10_000_000)


def played(sandbox: WasmSandbox, model: ModelDouble, **more: object) -> Played:
    return play(sandbox, model, **{"limits": ROOMY, **more})  # type: ignore[arg-type]


def printed(played: Played) -> list[str]:
    return [each.stdout for each in played.records if isinstance(each, ProgramFinished)]


def of(played: Played, kind: type) -> list:  # type: ignore[type-arg]
    return [each for each in played.records if isinstance(each, kind)]


def test_a_program_asks_a_model_and_the_replay_asks_nobody(sandbox: WasmSandbox) -> None:
    model = root(
        "FINAL(llm_query('what is 6 x 7?'))", queries=by_prompt(lambda prompt: f"<{prompt}>")
    )
    run = played(sandbox, model)

    assert run.run.answer == "<what is 6 x 7?>"
    (asked,), (replied,) = of(run, QueryAsked), of(run, QueryReplied)
    assert (asked.prompt, asked.model, asked.item, asked.attempt) == (
        "what is 6 x 7?", "fake:model", 0, 1,
    )  # fmt: skip
    assert replied.text == "<what is 6 x 7?>"
    assert run.replayed().held
    assert len(model.queried) == 1


def test_a_call_of_a_program_has_the_temperature_of_the_run(sandbox: WasmSandbox) -> None:
    for temperature in (None, 0.0, 0.5):
        model = root("llm_query('x')", "FINAL(1)")
        run = played(sandbox, model, temperature=temperature)

        assert model.temperatures == [temperature] * 3
        assert of(run, QueryAsked)[0].temperature == temperature
        assert run.replayed().held


def test_a_batch_runs_side_by_side_and_keeps_its_order(sandbox: WasmSandbox) -> None:
    program = "FINAL(llm_query_batched([f'item {n}' for n in range(200)]))"
    model = root(program, queries=by_prompt(lambda prompt: prompt.upper()), delay=0.05)
    run = played(sandbox, model)

    assert json.loads(run.run.answer or "") == [f"ITEM {n}" for n in range(200)]
    assert model.most_at_once == 200
    assert run.run.charge.model_calls == 201
    assert run.replayed().held
    assert len(model.queried) == 200


def test_one_that_fails_does_not_take_the_others_with_it(sandbox: WasmSandbox) -> None:
    def answer(prompt: str) -> str:
        if prompt == "b":
            raise ModelError(reason="content_policy", message="not this one", billed=False)
        return prompt * 2

    program = (
        "found = llm_query_batched(['a', 'b', 'c'])\n"
        "print([str(each) for each in found], isinstance(found[1], HostError), found[1].kind)"
    )
    run = played(sandbox, root(program, "FINAL(1)", queries=by_prompt(answer)))

    expected = "['aa', 'content_policy: not this one', 'cc'] True ModelError\n"
    assert printed(run)[0] == expected
    assert run.replayed().held


def test_what_fails_in_passing_is_asked_again_each_attempt_on_its_own(
    sandbox: WasmSandbox,
) -> None:
    passing = [ModelError(reason="rate_limit", message="later", retry_after_ms=1, billed=False)] * 2
    model = root("FINAL(llm_query('x'))", failures=list(passing))
    run = played(sandbox, model)

    assert run.run.answer == "ok"
    assert [each.attempt for each in of(run, QueryAsked)] == [1, 2, 3]
    assert [each.settled.figures for each in of(run, QueryFailed)] == ["returned", "returned"]
    assert run.replayed().held


def test_attempts_end_and_a_single_query_raises(sandbox: WasmSandbox) -> None:
    failures = [ModelError(reason="server_error", message="down", retry_after_ms=1)] * 9
    program = "try:\n    llm_query('x')\nexcept HostError as error:\n    print(error.kind, error)"
    model = root(program, "FINAL(1)", failures=failures)
    run = played(sandbox, model)

    assert printed(run)[0] == "ModelError server_error: down\n"
    assert len(model.queried) == 1 + RunLimits().retries
    assert run.replayed().held


# -- schemas -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "reply", "value"),
    [
        ("bool", "No, it is not.", "False"),
        ("bool", "yes", "True"),
        ("int", "42", "42"),
        ("float", "```json\n2.5\n```", "2.5"),
        ("str", "plain text", "'plain text'"),
        ("list[int]", "Here you are: [1, 2, 3]", "[1, 2, 3]"),
        ("dict[str, int]", '{"a": 1}', "{'a': 1}"),
        ("int | None", "null", "None"),
        ("{'enum': ['red', 'blue']}", "red", "'red'"),
        ("{'type': 'object', 'required': ['n']}", '{"n": 1}', "{'n': 1}"),
    ],
)
def test_an_answer_has_the_type_that_was_asked_for(
    sandbox: WasmSandbox, schema: str, reply: str, value: str
) -> None:
    program = f"print(repr(llm_query('?', schema={schema})))"
    run = played(sandbox, root(program, "FINAL(1)", queries=by_prompt(lambda prompt: reply)))

    assert printed(run)[0] == f"{value}\n"
    assert run.replayed().held


def test_an_answer_that_does_not_match_is_asked_for_once_more(sandbox: WasmSandbox) -> None:
    def answer(prompt: str) -> str:
        return "12" if prompt.startswith("That does not match") else "a dozen"

    model = root("FINAL(llm_query('how many?', schema=int))", queries=by_prompt(answer))
    run = played(sandbox, model)

    assert run.run.answer == "12"
    assert "the reply holds no JSON value" in model.queried[1]
    assert run.replayed().held


def test_an_answer_that_never_matches_is_an_error(sandbox: WasmSandbox) -> None:
    program = "print([each.kind for each in llm_query_batched(['x'], schema=int)])"
    model = root(program, "FINAL(1)", queries=by_prompt(lambda prompt: '"word"'))
    run = played(sandbox, model)

    assert printed(run)[0] == "['SchemaMismatch']\n"
    assert len(model.queried) == 2
    assert run.replayed().held


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("llm_query(5)", "prompt 0: text is needed, not int"),
        (
            "llm_query('x', schema={'pattern': '('})",
            "schema.pattern: the pattern '(' cannot be used",
        ),
        ("llm_query('x', schema={'type': 'date'})", "'date' is none of"),
        ("llm_query('x', schema=object)", "cannot cross"),
        ("llm_query('x', model='gpt-99')", "is not for programs"),
        ("llm_query('x', model=3)", "model: a name, not int"),
        ("llm_query_batched('abc')", "prompts: a list of texts, not str"),
        ("llm_query_batched(['a'], fit='some')", "'part' or 'whole'"),
        ("llm_query_batched(['a'] * 10_001)", "at most 10,000 in a batch"),
    ],
)
def test_wrong_use_is_the_programs_own_error(sandbox: WasmSandbox, call: str, says: str) -> None:
    run = played(sandbox, root(call, "FINAL(1)"))
    (first, *_) = of(run, ProgramFinished)

    assert first.failure is not None
    assert says in first.failure.message
    assert run.run.answered
    assert run.replayed().held


# -- budgets -----------------------------------------------------------------------------------


def usd(dollars: str, **more: int) -> RunLimits:
    return RunLimits(tokens=10_000_000, usd=nano_usd(dollars), **more)


def play_costed(
    sandbox: WasmSandbox, model: ModelDouble, limits: RunLimits, **options: object
) -> Played:
    return play(sandbox, model, limits=limits, pricing=PRICING, options=options)


def test_a_batch_that_is_not_paid_for_runs_the_part_that_is(sandbox: WasmSandbox) -> None:
    program = (
        "found = llm_query_batched(['x' * 400] * 50)\n"
        "print(sum(isinstance(each, HostError) for each in found), found[-1])\n"
        "print(budget.remaining()['usd'])"
    )
    model = root(program, "FINAL(1)")
    run = play_costed(sandbox, model, usd("0.004", reply_tokens=500))

    refused = len(of(run, QueryRefused))
    assert 0 < refused < 50
    assert f"{refused} usd: " in printed(run)[0]
    assert model.billed <= nano_usd("0.004")
    assert run.replayed().held


def test_a_batch_can_be_refused_whole_and_then_nothing_is_sent(sandbox: WasmSandbox) -> None:
    program = (
        "try:\n    llm_query_batched(['x' * 400] * 50, fit='whole')\n"
        "except HostError as error:\n    print(error.kind, error)"
    )
    model = root(program, "FINAL(1)")
    run = play_costed(sandbox, model, usd("0.01", reply_tokens=500))

    assert printed(run)[0].startswith("BudgetExhausted usd: ")
    assert model.queried == []
    assert run.replayed().held


def test_the_reply_is_no_longer_than_what_is_left_pays_for(sandbox: WasmSandbox) -> None:
    program = "print(llm_query('x' * 1000))"
    model = root(program, "FINAL(1)")
    limits = usd("0.02", reply_tokens=100_000)
    run = play_costed(sandbox, model, limits)

    _, cap, _ = model.caps
    assert 16 <= cap < 5_000
    assert cap * 4_000 + 1_000 * NANO_IN <= nano_usd("0.02")
    assert run.replayed().held


def test_calls_wait_for_what_others_give_back(sandbox: WasmSandbox) -> None:
    """A hundred worst cases do not fit at once; a hundred calls do, one after another."""
    program = "FINAL(sum(each == 'ok' for each in llm_query_batched(['x'] * 100)))"
    model = root(program, delay=0.001)
    run = play_costed(sandbox, model, usd("0.05", reply_tokens=2_000))

    assert run.run.answer == "100"
    assert 1 < model.most_at_once < 100
    assert model.billed <= nano_usd("0.05")


def test_long_prompts_and_replies_are_kept_apart_from_the_record(sandbox: WasmSandbox) -> None:
    program = "print(len(llm_query('p' * 100_000)))"
    run = played(sandbox, root(program, "FINAL(1)", queries=by_prompt(lambda prompt: "r" * 90_000)))
    (asked,), (replied,) = of(run, QueryAsked), of(run, QueryReplied)

    assert printed(run)[0] == "90000\n"
    assert asked.prompt_ref is not None
    assert asked.prompt_ref.id == hashlib.sha256(b"p" * 100_000).hexdigest()
    assert (asked.prompt, replied.text) == ("", "")
    assert run.replayed().held


def test_a_program_that_ends_by_its_time_leaves_its_calls_settled(sandbox: WasmSandbox) -> None:
    program = "llm_query_batched(['x'] * 3)"
    model = root(program, delay=30)
    run = play_costed(sandbox, model, usd("1", wall_ms=1_500))

    left = of(run, QueryFailed)
    assert run.run.stop == "deadline"
    assert [(each.reason, each.settled.figures) for each in left] == [("cancelled", "reserved")] * 3
    asked = {(each.intent, each.item): each.reserved.usd for each in of(run, QueryAsked)}
    assert sum(each.settled.usd for each in left) == sum(asked.values())
    assert run.replayed().held


def test_another_model_is_asked_only_if_it_was_given(sandbox: WasmSandbox) -> None:
    small = ModelDouble(name="fake:small", answers="small")
    model = root("FINAL(llm_query('x', model='small'))", name="fake:large")
    run = play_costed(sandbox, model, usd("1"), models={"small": small})

    assert run.run.answer == "small"
    assert [each.model for each in of(run, QueryAsked)] == ["fake:small"]
    assert run.replayed().held


def test_a_call_that_does_not_let_itself_be_left_leaves_the_run_in_doubt(
    sandbox: WasmSandbox,
) -> None:
    """Nobody can say what becomes of it; its end is not written behind the run's."""

    async def deaf(call: ModelCall) -> str:
        ends_at = time.monotonic() + 3
        while time.monotonic() < ends_at:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.1)
        raise AssertionError

    model = root("llm_query('x')", queries=deaf)
    run = play_costed(sandbox, model, usd("1", wall_ms=700))

    assert (run.run.stop, of(run, QueryFailed)) == ("in_doubt", [])
    assert "llm_query was begun and left" in run.run.detail
    assert run.replayed().held
    run.session.close()
    assert len(list(records_of(run.ledger, run.run.run))) == len(run.records)
