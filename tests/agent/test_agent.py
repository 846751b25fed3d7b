"""The agent as its users write it: one-liners, typed answers, money as text, conversations."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import gc
import inspect
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pydantic
import pytest

import tallystick
from tallystick import Agent, Budget, NoAnswer, RunLimits, UsageError, tool
from tallystick.agent.model_function import CallableModel
from tallystick.core.charge import Charge, ModelUsage
from tallystick.core.records import CallHost, RunStarted
from tallystick.inputs import given_text
from tallystick.ledger import MemoryLedger
from tallystick.model import ModelReply, ScriptedModel
from tallystick.runtime.runs.history import records_of
from tallystick.runtime.runs.result import Run
from tallystick.testing.models import block
from tallystick.testing.sandbox import PlainSandbox

USAGE = ModelUsage(tokens_in=7, tokens_out=3, reported=True)
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@dataclasses.dataclass
class Total:
    euro: float


class Line(pydantic.BaseModel):
    sku: str
    count: int = pydantic.Field(gt=0)


def agent_of(*programs: str, ledger: Any = None, **options: Any) -> Agent:
    """An agent with a scripted model, in a sandbox that is quick."""
    model = ScriptedModel.of(*map(block, programs))
    sandbox: Any = PlainSandbox()
    return Agent(model, ledger=ledger or MemoryLedger(), sandbox=sandbox, config=None, **options)


@tool(reads=True)
def rate(currency: str) -> float:
    """The rate of a currency in euro."""
    return {"usd": 0.5}[currency]


def send(to: str) -> str:
    """Send a mail."""
    return f"sent to {to}"


# -- running ------------------------------------------------------------------------------------


def test_an_agent_needs_no_with_and_takes_functions_text_and_a_type() -> None:
    agent = agent_of("FINAL({'euro': len(context) * rate('usd')})", tools=[rate])

    run = agent.run("how much?", inputs="abcd", answer=Total, max_usd="0.50")

    assert run.value == Total(2.0)
    assert run.checked() is run
    assert str(run) == '{"euro":2.0}'
    agent.close()


def test_a_plain_function_is_an_effect_and_a_marked_one_reads() -> None:
    with agent_of("FINAL(send('ann') + str(rate('usd')))", tools=[send, rate]) as agent:
        run = agent.run("send")
        begun = [each for each in records_of(agent.ledger, run.id) if isinstance(each, CallHost)]

    assert run.value == "sent to ann0.5"
    assert [each.name for each in begun] == ["send"]


def test_an_answer_that_does_not_fit_its_type_is_asked_for_again() -> None:
    bad, good = "FINAL([{'sku': 'a', 'count': 0}])", "FINAL([{'sku': 'a', 'count': 2}])"
    with agent_of(bad, good) as agent:
        run = agent.run("which?", answer=list[Line])

    assert run.value == [Line(sku="a", count=2)]
    assert run.turns == 2


def test_without_a_type_the_value_is_the_text() -> None:
    with agent_of("FINAL('hi')", "FINAL('ho')") as agent:
        assert agent.run("x", strategy="code").value == "hi"
        assert agent.run("x", strategy="code", answer=str).value == "ho"


class Node:
    """A class that no schema describes."""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"answer": Node}, "answer: Node is no type that can be checked"),
        ({"answer": {"type": "text"}}, "schema.type: 'text' is none of"),
        ({"max_usd": 0.5}, "max_usd: 0.5 is a float, which is not an exact sum; write it as text"),
        ({"max_usd": "a lot"}, "max_usd"),
        ({"max_usd": "1", "limits": RunLimits()}, "limits and max_usd: give one of them"),
        ({"limits": {"usd": 0.5}}, "limits: usd: 0.5 is a float"),
        ({"limits": {"turn": 5}}, "limits: 'turn' is no limit; did you mean 'turns'"),
        ({"limits": {"turns": -1}}, "limits: turns: -1 is no limit"),
        ({"limits": 5}, "limits: give RunLimits, or a dict"),
        ({"files": ["absent.csv"]}, "absent.csv"),
        ({"inputs": {"a b": "text"}}, "'a b' is no name for a variable"),
        ({"inputs": {"books": 5}}, "inputs: books is int; give text, bytes or a path"),
        ({"inputs": ["books.csv"]}, "inputs: a list has str; give text and paths by name"),
        ({"model": 5}, "model: int is no model"),
        ({"model": "no-such-model"}, "no-such-model"),
        ({"instructions": 5}, "instructions: text is needed, not int"),
        ({"session": "absent"}, "absent"),
    ],
)
def test_a_wrong_request_is_refused_in_one_line_before_anything_is_written(
    options: dict[str, Any], said: str
) -> None:
    with agent_of("FINAL(1)") as agent:
        with pytest.raises(Exception, match=said) as refused:
            agent.run("what?", **options)

        assert "\n" not in str(refused.value)
        assert list(agent.ledger.runs()) == []


def test_an_unknown_keyword_is_a_type_error_that_names_the_near_one() -> None:
    options: Any = {"max_tokns": 5}
    with agent_of() as agent, pytest.raises(TypeError, match="did you mean 'max_tokens'"):
        agent.run("what?", **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"budget": {"usd": 5.0}}, "budget: usd: 5.0 is a float"),
        ({"budget": {"usd": "5"}, "max_usd": "5"}, "budget and max_usd: give one of them"),
        ({"budget": Budget(usd=1), "max_tokens": 5}, "budget and max_tokens: give one of them"),
        ({"budget": {"token": 5}}, "budget: 'token' is no limit; did you mean 'tokens'"),
        ({"budget": "5"}, "budget: give a Budget, or a dict"),
        ({"budget": Budget(usd="5")}, r"Budget\(usd=.5.\): this is a whole number of nano-dollars"),  # type: ignore[arg-type]
        ({"tools": [lambda key: key]}, "tools: a lambda has no name"),
        ({"tools": [rate, rate]}, "tools: two are called rate"),
        ({"skills": "absent"}, "absent"),
        ({"skills": 5}, "skills: give Skills or directories, not int"),
        ({"instructions": ["a"]}, "instructions: text is needed, not list"),
        ({"model": 5}, "model: int is no model; give a name"),
    ],
)
def test_a_wrong_agent_is_refused_in_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        Agent(**options)

    assert "\n" not in str(refused.value)


def test_the_budget_of_an_agent_is_for_all_its_runs() -> None:
    with agent_of(*["FINAL(1)"] * 3, max_tokens=1_000) as agent:
        stops = [agent.run("what?", strategy="code").stop for _ in range(3)]

    assert stops[0] == "answered"
    assert stops[-1] == "budget"


def test_help_shows_each_option_of_a_run() -> None:
    shown = inspect.signature(Agent.run).parameters

    assert {"answer", "inputs", "files", "max_usd", "session", "watch"} <= set(shown)
    assert all(each.kind is not each.VAR_KEYWORD for each in shown.values())


# -- results ------------------------------------------------------------------------------------


def test_a_run_without_an_answer_says_the_stop_and_the_next_command() -> None:
    with agent_of("print('so far')") as agent:
        run = agent.run("what?", strategy="code", limits={"turns": 1})

    said = (
        f"run {run.id} has no answer: max_turns: all 1 turns used; the partial answer is 'so far'"
    )
    assert str(run) == said
    for insist in (lambda: run.value, run.checked):
        with pytest.raises(NoAnswer) as refused:
            insist()
        assert refused.value.run is run
        assert str(refused.value) == f"{said}; next: tally resume {run.id} --max-turns N"
    assert run.answer == "so far"
    assert "partial" in repr(run)
    assert "partial answer" in run._repr_html_()


def ended(**fields: Any) -> Run[Any]:
    """A run as it may end."""
    given = {"run": "01M7", "answer": "a", "stop": "answered", "detail": "", "partial": False}
    rest = {"turns": 1, "charge": Charge(usd=42_000_000), "citations": (), "ledger": ""}
    return Run(**{**given, **rest, **fields})


def test_a_run_is_one_line_and_its_cost_is_in_dollars() -> None:
    run = ended(answer="a\nb" * 100)

    assert repr(run).count("\n") == 0
    assert len(repr(run)) < 200
    assert run.cost == Decimal("0.042")
    assert ended(charge=Charge()).cost is None
    assert str(ended(charge=Charge(usd=500_000_000)).cost) == "0.50"


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", '"><img onerror=x>', "&" * 90_000])
def test_the_card_of_a_run_is_small_static_and_escaped(text: str) -> None:
    for run in (ended(answer=text), ended(stop="model_error", answer=None, detail=text)):
        card = run._repr_html_()

        assert len(card.encode()) <= 20_000 + 5 * 4_000 * ("&&" in text)
        assert "<script" not in card
        assert "<img" not in card
        assert "onerror=x>" not in card


def test_a_type_that_refuses_an_answer_which_fits_its_schema_says_so() -> None:
    class Even(pydantic.BaseModel):
        n: int

        @pydantic.field_validator("n")
        @classmethod
        def even(cls, n: int) -> int:
            if n % 2:
                raise ValueError("n must be even")
            return n

    with agent_of("FINAL({'n': 1})") as agent:
        run = agent.run("what?", answer=Even)

    with pytest.raises(NoAnswer, match=r"fits its schema, but not its type: .*n must be even"):
        _ = run.value


# -- data, models, conversations ----------------------------------------------------------------


def test_data_is_given_by_name_as_text_bytes_or_paths(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("three")
    (tmp_path / "books.csv").write_text("id,due\n1,2\n")
    program = "FINAL([books, raw, log, context])"
    with agent_of(program, "FINAL(context)", "FINAL(books)") as agent:
        run = agent.run(
            "what?",
            inputs={"books": "one", "raw": b"two", "log": tmp_path / "log.txt", "pic": PNG},
            files=[tmp_path / "books.csv"],
            answer=list[str],
        )
        alone = agent.run("what?", inputs=tmp_path / "log.txt", strategy="code")
        listed = agent.run("what?", inputs=[given_text("four", variable="books")], strategy="code")

    assert run.value == ["one", "two", "three", "id,due\n1,2\n"]
    assert (alone.value, listed.value) == ("three", "four")


def test_instructions_are_recorded_and_in_every_prompt_and_replay() -> None:
    asked: list[str] = []

    def model(messages: list[dict[str, str]]) -> str:
        asked.append(messages[0]["content"])
        return block("FINAL(1)")

    sandbox: Any = PlainSandbox()
    with Agent(
        model, instructions="Be brief.", ledger=MemoryLedger(), sandbox=sandbox, config=None
    ) as agent:
        run = agent.run("what?", instructions="In French.", strategy="code")
        agent.run("what?", strategy="direct")
        started = next(iter(records_of(agent.ledger, run.id)))
        held = agent.replay(run).held

    assert isinstance(started, RunStarted)
    assert started.instructions == "Be brief.\nIn French."
    assert asked[0].endswith("Instructions:\nBe brief.\nIn French.")
    assert asked[1].endswith("Instructions:\nBe brief.")
    assert held


def test_a_model_is_a_function_async_or_not() -> None:
    async def later(messages: list[dict[str, str]]) -> str:
        await asyncio.sleep(0)
        return block(f"FINAL('{messages[-1]['role']}')")

    def reported(messages: list[dict[str, str]]) -> ModelReply:
        usage = CallableModel(later).name
        return ModelReply(text=block(f"FINAL('{usage}')"), usage=USAGE)

    with agent_of() as agent:
        assert agent.run("x", model=later, strategy="code").value == "user"
        run = agent.run("x", model=reported, strategy="code")

    assert run.value == "later"
    assert (run.charge.tokens_in, run.charge.tokens_out) == (7, 3)


def test_a_model_that_raises_ends_the_run_with_its_words() -> None:
    def broken(messages: list[dict[str, str]]) -> str:
        raise RuntimeError("no more today")

    def silent(messages: list[dict[str, str]]) -> None:
        return None

    with agent_of() as agent:
        run = agent.run("x", model=broken, strategy="code", limits={"retries": 0})
        other = agent.run("x", model=silent, strategy="code", limits={"retries": 0})

    assert run.stop == other.stop == "model_error"
    assert "RuntimeError: no more today" in run.detail
    assert "silent returned NoneType; it returns the reply as text" in other.detail


def test_a_second_question_of_a_chat_continues_from_the_first() -> None:
    with Agent(
        ScriptedModel.of(block("n = 41\nFINAL(n)"), block("FINAL(n + 1)"), block("FINAL(n)")),
        ledger="memory:",
        config=None,
    ) as agent:
        chat = agent.chat(strategy="code")
        first, second = chat.run("a number?"), chat.run("and one more?", answer=int)
        again = agent.chat(chat.session).run("which?", answer=int, strategy="code")
        started = next(iter(records_of(agent.ledger, second.id)))

    assert (first.value, second.value, again.value) == ("41", 42, 41)
    assert isinstance(started, RunStarted)
    assert started.session is not None
    assert "a number?" in started.session.told


def test_recorded_runs_keep_their_type_in_every_twin() -> None:
    async def main() -> None:
        sandbox: Any = PlainSandbox()
        model = ScriptedModel.of(*map(block, ["print(1)", "FINAL([1])", "FINAL([2])"]))
        async with Agent(model, ledger=MemoryLedger(), sandbox=sandbox, config=None) as agent:
            cut = await agent.arun("x", answer=list[int], strategy="code", limits={"turns": 1})
            whole = await agent.aresume(cut, limits={"turns": 3})
            forked = await agent.afork(whole, turn=1)
            assert (whole.value, forked.value) == ([1], [2])
            assert (await agent.areplay(whole)).held
            assert agent.resume(whole.id).value == [1]

    asyncio.run(main())


# -- threads, loops and ends --------------------------------------------------------------------


def test_threads_share_an_agent() -> None:
    def model(messages: list[dict[str, str]]) -> str:
        return block("FINAL(len(context))")

    sandbox: Any = PlainSandbox()
    with (
        Agent(model, ledger="memory:", sandbox=sandbox, config=None) as agent,
        ThreadPoolExecutor(8) as pool,
    ):
        runs = list(pool.map(lambda n: agent.run("x", inputs="a" * (n + 1)), range(24)))

    assert [run.value for run in runs] == [str(n + 1) for n in range(24)]
    assert len({run.id for run in runs}) == 24


def test_a_plain_call_works_inside_a_running_loop() -> None:
    async def main() -> str:
        with agent_of("FINAL('inside')") as agent:
            return agent.run("x", strategy="code").value

    assert asyncio.run(main()) == "inside"


def test_an_agent_that_is_dropped_leaves_no_thread() -> None:
    agent = agent_of("FINAL(1)")
    agent.run("x", strategy="code")
    assert "tally-loop" in {each.name for each in threading.enumerate()}

    del agent
    gc.collect()

    assert "tally-loop" not in {each.name for each in threading.enumerate()}


LEFT_OPEN = """
import tallystick, time
from tallystick.model import ScriptedModel
agent = tallystick.Agent(
    lambda messages: (time.sleep(PAUSE), "```python\\nFINAL(1)\\n```")[1],
    ledger="memory:", config=None,
)
handle = agent.start("x", strategy="direct")
WAIT
print("end")
"""


@pytest.mark.parametrize(("pause", "wait"), [("0", "handle.result()"), ("0.5", "pass")])
def test_python_ends_quietly_with_an_agent_left_open(pause: str, wait: str) -> None:
    source = LEFT_OPEN.replace("PAUSE", pause).replace("WAIT", wait)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert (done.stdout, done.stderr) == ("end\n", "")


def test_the_old_name_of_the_agent_works_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="write `tallystick.Agent`"):
        old = tallystick.Session
    with pytest.warns(DeprecationWarning, match="write `tallystick.tool`"):
        assert callable(tallystick.host_function)
    sandbox: Any = PlainSandbox()
    with (
        warnings.catch_warnings(),
        old(
            model=ScriptedModel.of(block("FINAL({'n': 1})")),
            functions=[],
            ledger=MemoryLedger(),
            sandbox=sandbox,
            config=None,
        ) as session,
    ):
        run = session.run("x", inputs=[given_text("a")], schema={"type": "object"})

    assert run.value == {"n": 1}
