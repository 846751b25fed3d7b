"""Strategies in runs: what is sent, what is recorded, replay and resume, and what is refused."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from tests.runtime.context.test_attachments_in_runs import PNG
from tests.runtime.run.cut_runs import GOAL, ROOMY, Whole, in_doubt, keys_of, without_time, world

from tallystick.client import Session
from tallystick.core.budget.amount import Budget
from tallystick.core.charge import RunLimits
from tallystick.core.errors import UsageError
from tallystick.core.records import (
    AskModel,
    ModelRefused,
    ModelReplied,
    ProgramFinished,
    QueryReplied,
    Record,
    RunProgram,
    RunStarted,
)
from tallystick.core.strategy import AskedStrategy
from tallystick.inputs.reading import read_inputs
from tallystick.inputs.strategy import Estimate, estimate_run
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger
from tallystick.model.port import ModelError, ModelRequest
from tallystick.model.price_table import PriceTable, Pricing
from tallystick.model.scripted import ScriptedReply
from tallystick.runtime.context.inputs import Input, given_text
from tallystick.runtime.runs.history import records_of
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import PRICING, ModelCall, ModelDouble, block, by_prompt, reported
from tallystick.testing.plans import Planned, program
from tallystick.testing.runs import Played, play

pytestmark = pytest.mark.slow

STORY = "The ship left Riga in the night. Nobody saw the captain again.\n" * 40
TABLE = "id,port\n" + "".join(f"{n},Riga\n" for n in range(50))
LOG = "".join(f"2024-03-{n % 28 + 1:02} 10:00:0{n % 9} ERROR disk {n}\n" for n in range(50))
SENTENCE = "The ship left Riga in the night. "


def of(played: Played, kind: type) -> list[Any]:
    return [each for each in played.records if isinstance(each, kind)]


def started_of(played: Played) -> RunStarted:
    return cast(RunStarted, played.records[0])


def kept(*answers: str, **more: Any) -> ModelDouble:
    """A model that gives these answers, one after the other."""
    return ModelDouble(answers, **more)


# -- direct ------------------------------------------------------------------------------------


def test_a_direct_run_asks_once_and_runs_nothing(sandbox: WasmSandbox) -> None:
    model = kept(" Riga \n")

    played = play(sandbox, model, inputs=[given_text(STORY)], strategy="direct")

    assert (played.run.answer, played.run.stop, played.run.turns) == ("Riga", "answered", 1)
    (request,) = model.requests
    assert STORY in request.messages[1].text
    assert not of(played, RunProgram)
    assert (started_of(played).strategy, started_of(played).strategy_why) == ("direct", "")
    assert played.replayed().held
    assert len(model.requests) == 1


def test_the_texts_are_in_no_record(sandbox: WasmSandbox) -> None:
    played = play(sandbox, ["Riga"], inputs=[given_text(STORY)], strategy="direct")

    assert of(played, AskModel)[0].added == ("system:direct", "task:direct")
    assert all(STORY not in str(record) for record in played.records)


def test_a_direct_answer_is_cited(sandbox: WasmSandbox) -> None:
    text = "The ship left in the night.\nIts master was Anna Bergstrom-77 of Riga.\n"

    played = play(sandbox, ["Anna Bergstrom-77"], inputs=[given_text(text)], strategy="direct")

    (citation,) = played.run.citations
    assert citation.line == 2


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (ScriptedReply(text="The answer is", cut=True), "cut"),
        ("", "empty"),
        ("CANNOT", "refused"),
        ("I'm sorry, I can't help with that.", "refused"),
    ],
)
def test_what_is_no_answer_falls_back_to_code_in_the_same_run(
    sandbox: WasmSandbox, reply: str | ScriptedReply, reason: str
) -> None:
    played = play(
        sandbox,
        [reply, block("FINAL(len(context))")],
        inputs=[given_text(STORY)],
        strategy="direct",
    )

    assert played.run.answer == str(len(STORY))
    second = of(played, AskModel)[1]
    assert second.added == ("system", f"task+not_direct:{reason}")
    assert (second.base, second.turn, played.run.turns) == (None, 2, 2)
    assert played.replayed().held


def test_a_program_that_was_not_asked_for_is_run(sandbox: WasmSandbox) -> None:
    model = kept(block("n = len(context)\nprint(n)"), block("FINAL(n)"))

    played = play(sandbox, model, inputs=[given_text(STORY)], strategy="direct")

    assert played.run.answer == str(len(STORY))
    system = model.requests[1].messages[0].text
    assert "You solve a task by writing Python" in system
    assert STORY not in model.requests[1].messages[1].text
    assert played.replayed().held


@pytest.mark.parametrize("reason", ["context_overflow", "content_policy"])
def test_a_model_that_will_not_read_it_whole_is_asked_for_programs(
    sandbox: WasmSandbox, reason: Any
) -> None:
    said = block("FINAL(len(context))")
    model = kept(said, failures=[ModelError(reason=reason, message="too long")])

    played = play(sandbox, model, inputs=[given_text(STORY)], strategy="direct")

    assert played.run.answer == str(len(STORY))
    assert of(played, AskModel)[1].added == ("system", f"task+not_direct:{reason}")
    assert played.replayed().held


def test_an_old_style_prompt_is_byte_for_byte_that_of_code(sandbox: WasmSandbox) -> None:
    def asked(**strategy: Any) -> ModelRequest:
        model = kept(block("FINAL(1)"))
        play(sandbox, model, inputs=[given_text(STORY)], **strategy)
        return model.requests[0]

    plain, named, chosen = asked(), asked(strategy="code"), asked(strategy="recursive")

    assert plain.messages == named.messages
    assert chosen.messages[0].text.startswith(plain.messages[0].text)
    assert chosen.messages[1] == plain.messages[1]


# -- by name, refused --------------------------------------------------------------------------


def refused(sandbox: WasmSandbox, inputs: Sequence[Input], **more: Any) -> str:
    ledger = MemoryLedger()
    session = Session(model=more.pop("model", kept()), ledger=ledger, sandbox=sandbox)
    with pytest.raises(UsageError) as caught:
        session.run("what?", inputs=inputs, **more)
    assert list(ledger.runs()) == []
    return str(caught.value)


def test_a_text_beyond_the_window_is_refused_before_anything_is_written(
    sandbox: WasmSandbox,
) -> None:
    said = refused(sandbox, [given_text(STORY * 70)], strategy="direct")

    assert said.startswith("strategy direct: a prompt of about ")
    assert "is taken to have room for 32,768" in said


def test_a_window_that_the_model_tells_is_the_one_that_counts(sandbox: WasmSandbox) -> None:
    long = [given_text(STORY * 70)]
    roomy = RunLimits(tokens=10_000_000)

    played = play(sandbox, kept("x", window=400_000), inputs=long, limits=roomy, strategy="direct")
    said = refused(sandbox, [given_text(STORY)], model=kept(window=700), strategy="direct")

    assert played.run.answer == "x"
    assert "has room for 700" in said


def test_a_text_that_stays_on_the_host_is_refused(sandbox: WasmSandbox) -> None:
    model = kept(window=10**9)

    said = refused(sandbox, [given_text("word " * 800_001)], model=model, strategy="direct")

    assert "texts of about 1,000,001 tokens stay on the host" in said


def test_a_name_that_is_no_strategy_is_refused(sandbox: WasmSandbox) -> None:
    for name in ("", "quick"):
        assert "must be auto, direct, code or recursive" in refused(sandbox, [], strategy=name)


def test_a_direct_run_that_the_cap_does_not_pay_for_ends_by_its_budget(
    sandbox: WasmSandbox,
) -> None:
    model = kept()

    played = play(
        sandbox,
        model,
        inputs=[given_text(STORY)],
        limits=RunLimits(tokens=2_000),
        strategy="direct",
    )

    assert (played.run.stop, played.run.answer) == ("budget", None)
    assert len(of(played, ModelRefused)) == 1
    assert model.requests == []
    assert played.replayed().held


# -- auto --------------------------------------------------------------------------------------


def chosen(sandbox: WasmSandbox, *texts: str, **more: Any) -> tuple[str, str]:
    inputs = [given_text(text, name=f"{n}.txt") for n, text in enumerate(texts)]
    # Whatever it is, a program and an answer at once.
    model = more.pop("model", None) or kept(block("FINAL('x' if 1 else context)"))
    session = Session(
        model=model, ledger=MemoryLedger(), sandbox=sandbox, pricing=more.pop("pricing", PRICING)
    )
    run = session.run("what?", inputs=inputs, strategy="auto", **more)
    started = next(iter(records_of(session.ledger, run.run)))
    assert isinstance(started, RunStarted)
    assert session.replay(run.run).held
    return started.strategy, started.strategy_why


def test_auto_reads_short_prose_and_records_why(sandbox: WasmSandbox) -> None:
    strategy, why = chosen(sandbox, STORY)

    assert strategy == "direct"
    assert why.startswith("about 710 tokens are read at once (up to 16,384); about $0.0011")


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (TABLE, 50),
        ("\n".join('{"port": "Riga"}' for _ in range(50)), 50),
        ("[" + ", ".join('{"a": 1}' for _ in range(50)) + "]", 50),
        ('{"items": {"list": [' + ", ".join("1" for _ in range(50)) + "]}}", 50),
        (" ".join(str(n) for n in range(50)), 50),
        (LOG, 50),
        ("".join(f"Mar {n:2} 10:00:00 host kernel: up\n" for n in range(50)), 50),
        ("".join(f"10.0.0.{n} - - [x] GET\n" for n in range(50)), 50),
    ],
)
def test_auto_has_programs_count_rows(sandbox: WasmSandbox, text: str, rows: int) -> None:
    strategy, why = chosen(sandbox, text)

    assert (strategy, why) == ("code", f"{rows} rows are counted by programs (more than 36)")


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(TABLE.splitlines()[:37]),
        "\n".join("and so they went on through the snow, for days" for _ in range(200)),
        "# Notes\n\n" + "- a thing to do, and why\n" * 60,
        '{"note": "so it was", "by": "Anna"}',
    ],
)
def test_auto_reads_small_tables_and_texts_of_many_lines(sandbox: WasmSandbox, text: str) -> None:
    assert chosen(sandbox, text)[0] == "direct"


def test_auto_adds_up_the_rows_of_all_files(sandbox: WasmSandbox) -> None:
    table = "\n".join(TABLE.splitlines()[:20])

    assert chosen(sandbox, table)[0] == "direct"
    assert chosen(sandbox, table, table.replace("Riga", "Oslo"), STORY)[0] == "code"


def test_auto_reads_at_once_though_programs_might_cost_less(sandbox: WasmSandbox) -> None:
    strategy, why = chosen(sandbox, SENTENCE * 1_900, limits=ROOMY)

    assert (strategy, "at once" in why) == ("direct", True)


def test_auto_reads_in_pieces_where_a_long_prompt_costs_more_for_each_token(
    sandbox: WasmSandbox,
) -> None:
    dear = {"input": "1", "output": "4", "bands": [{"above": 8_000, "input": "10"}]}
    pricing = Pricing(declared=PriceTable.of_user({"fake:*": dear}))

    strategy, why = chosen(sandbox, SENTENCE * 1_900, limits=ROOMY, pricing=pricing)

    assert (strategy, "reading at once costs more" in why) == ("recursive", True)


def _messages(count: int) -> str:
    """Lines of a chat: each begins alike, with a time, and then says something of its own."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abdegiklmnorstu", k=draw.randrange(3, 9))) for _ in range(2_000)]
    said = (" ".join(draw.choices(words, k=12)) for _ in range(count))
    return "".join(f"[10:{n % 60:02}] user{n % 9}: {line}.\n" for n, line in enumerate(said))


def test_auto_reads_lines_that_tell_something_though_they_begin_alike(sandbox: WasmSandbox) -> None:
    assert chosen(sandbox, _messages(100))[0] == "direct"
    assert chosen(sandbox, _messages(2_000), limits=ROOMY)[0] == "recursive"


@pytest.mark.parametrize(
    "line",
    [
        "2024-03-01 10:00:{:02} WARN pool: the connection to the server was lost and is made again",
        "10:00:{:02} disk full",
        "{:02} Anna Berg, Riga, 12 Elm Road, anna.berg@example.org, paid",
    ],
)
def test_auto_has_programs_count_lines_that_say_the_same_or_little(
    sandbox: WasmSandbox, line: str
) -> None:
    text = "\n".join(line.format(n) for n in range(60))

    assert chosen(sandbox, text) == ("code", "60 rows are counted by programs (more than 36)")


def test_auto_reads_long_prose_in_pieces_if_that_is_paid_for(sandbox: WasmSandbox) -> None:
    long = SENTENCE * 4_000

    assert chosen(sandbox, long, limits=ROOMY)[0] == "recursive"
    assert chosen(sandbox, long, limits=RunLimits(tokens=30_000))[0] == "code"
    assert chosen(sandbox, long, limits=RunLimits(usd=1_000_000))[0] == "code"


def test_auto_looks_at_the_beginning_of_a_text_that_stays_on_the_host(
    sandbox: WasmSandbox,
) -> None:
    words = "and so they went on through the snow, for days and days\n" * 80_000
    limits = RunLimits(tokens=10**8)

    assert chosen(sandbox, words, limits=limits)[0] == "recursive"
    strategy, why = chosen(sandbox, LOG * 3_000, limits=limits)
    assert (strategy, why.split()[0]) == ("code", "150,006")
    assert chosen(sandbox, '{"a": [\n' + "1,\n" * 1_500_000, limits=limits)[0] == "code"


def test_auto_knows_a_cap_that_does_not_pay_for_the_prompt(sandbox: WasmSandbox) -> None:
    strategy, why = chosen(sandbox, STORY, limits=RunLimits(tokens=3_000))

    assert strategy == "code"
    assert why.endswith("and 3,000 are left")


def test_without_a_text_auto_writes_programs(sandbox: WasmSandbox) -> None:
    assert chosen(sandbox) == ("code", "there is no text to read")
    assert chosen(sandbox, "")[0] == "code"


def test_pictures_alone_are_shown_and_asked_about(sandbox: WasmSandbox, tmp_path: Path) -> None:
    path = tmp_path / "boat.png"
    path.write_bytes(PNG)
    model = kept("a boat")

    played = play(sandbox, model, inputs=read_inputs([str(path)]), strategy="auto")

    assert played.run.answer == "a boat"
    assert started_of(played).strategy == "direct"
    assert model.requests[0].messages[1].images[0].data == PNG
    assert played.replayed().held


@pytest.mark.parametrize("inputs", [[], [given_text("")]])
def test_a_direct_run_over_nothing_asks_the_question(
    sandbox: WasmSandbox, inputs: list[Input]
) -> None:
    played = play(sandbox, ["4"], goal="what is 2 + 2?", inputs=inputs, strategy="direct")

    assert played.run.answer == "4"
    assert played.replayed().held


@pytest.mark.parametrize(("strategy", "stop"), [("auto", "answered"), ("direct", "budget")])
def test_a_budget_that_is_gone_when_the_call_is_made(
    sandbox: WasmSandbox, tmp_path: Path, strategy: AskedStrategy, stop: str
) -> None:
    """Others took it in between: a chosen run goes on as code, one that was asked for ends."""
    total = Budget(tokens=20_000)

    def taken(run: str, record: Record) -> None:
        if isinstance(record, RunStarted):
            with (
                SqliteLedger(tmp_path / "ledger.db") as ledger,
                Session(
                    model=ModelDouble("x", usage=reported(14_000, 1)),
                    ledger=ledger,
                    sandbox=sandbox,
                    total=total,
                ) as other,
            ):
                other.run("what?", strategy="direct")

    with (
        SqliteLedger(tmp_path / "ledger.db") as ledger,
        Session(
            model=kept(block("FINAL(len(context))")), ledger=ledger, sandbox=sandbox, total=total
        ) as session,
    ):
        text = STORY * 3
        run = session.run("what?", inputs=[given_text(text)], strategy=strategy, watch=taken)
        records = list(records_of(ledger, run.run))
        held = session.replay(run.run).held

    assert run.stop == stop
    assert held
    asked = [each.added for each in records if isinstance(each, AskModel)]
    assert len([each for each in records if isinstance(each, ModelRefused)]) == 1
    if strategy == "auto":
        assert (run.answer, run.turns) == (str(len(text)), 1)
        assert asked == [("system", "task+not_direct:budget")]


# -- recursive ---------------------------------------------------------------------------------


def shown_example(call: ModelCall) -> str:
    """Return the program that the prompt shows as an example."""
    return call.messages[0].text.split("```python\n")[-1].split("\n```")[0]


def reads(call: ModelCall) -> str:
    """Run the example as it is shown, then answer with the number of pieces."""
    return block("FINAL(len(pieces))" if call.turn else shown_example(call))


LATE = "x" * 9_000 + "late" + "y" * 9_000


@pytest.mark.parametrize(
    ("texts", "calls"),
    [
        ([LATE], 3),
        ([LATE, "short and late", "early"], 5),
        (["late" + "z" * 8_000 * 505], 506),
        ([], 2),
    ],
    ids=["one", "several", "on the host", "none"],
)
def test_the_example_of_a_recursive_run_runs_on_its_data(
    sandbox: WasmSandbox, texts: list[str], calls: int
) -> None:
    model = ModelDouble(
        reads, queries=by_prompt(lambda prompt: "true" if "late" in prompt else "false")
    )
    inputs = [given_text(text, name=f"{n}.txt") for n, text in enumerate(texts)]

    played = play(
        sandbox, model, inputs=inputs, limits=RunLimits(tokens=10**8), strategy="recursive"
    )

    assert played.run.answer == str(calls)
    assert len(of(played, QueryReplied)) == min(calls, 40)
    first = of(played, ProgramFinished)[0]
    assert first.failure is None
    assert first.stdout.count("'") == 2 * sum("late" in text for text in texts)
    assert played.replayed().held


def judges(call: ModelCall) -> str:
    """Run the example over the data as it is shown, then count what was said of each text."""
    if call.turn:
        return block("FINAL(said.count(True))")
    assert "pieces" not in call.messages[0].text
    return block(call.prompt.split("```python\n")[1].split("\n```")[0])


NOTES = [("a", "the train comes late today, says {it}"), ("b", "nothing to report on this day")] * 3


@pytest.mark.parametrize(
    "text",
    [
        "".join(json.dumps({"id": id, "note": note}) + "\n" for id, note in NOTES),
        "id,note\n" + "".join(f'{id},"{note}"\n' for id, note in NOTES),
    ],
    ids=["records", "rows"],
)
def test_the_example_over_rows_asks_about_the_text_of_each_with_the_words_of_the_task(
    sandbox: WasmSandbox, text: str
) -> None:
    model = ModelDouble(
        judges,
        queries=by_prompt(lambda text: "Yes." if "comes late" in text else "No, it does not."),
    )

    played = play(sandbox, model, inputs=[given_text(text, name="n")], strategy="recursive")

    assert played.run.answer == "3"
    assert len(of(played, QueryReplied)) == len(NOTES)
    assert played.run.stop == "answered"
    last = model.queried[-1]
    assert started_of(played).goal in last
    assert last.endswith("Reply with only yes or no.")
    assert played.replayed().held


# -- cut off -----------------------------------------------------------------------------------


def run_whole(sandbox: WasmSandbox, strategy: AskedStrategy, *plan: Planned) -> Whole:
    made = world(sandbox, plan)
    run = made.session.run(GOAL, limits=ROOMY, inputs=[given_text(STORY)], strategy=strategy)
    return Whole(made, plan, run, made.records(run.run))


PLANS: dict[str, tuple[AskedStrategy, tuple[Planned, ...]]] = {
    "direct": ("direct", (Planned("Riga", failures=1),)),
    "auto": ("auto", (Planned("Riga"),)),
    "fell back": ("direct", (Planned("CANNOT"), program("n = 2 + send('a')", "print(n)"),
                             program("FINAL(n)"))),
    "a program": ("auto", (program("n = len(llm_query('a'))", "print(n)"), program("FINAL(n)"))),
    "recursive": ("recursive", (program("n = len(llm_query_batched(['a', 'bc']))", "print(n)"),
                                program("FINAL(n)"))),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_from_every_place_a_run_reaches_the_same_end(sandbox: WasmSandbox, name: str) -> None:
    strategy, plan = PLANS[name]
    whole = run_whole(sandbox, strategy, *plan)
    assert whole.run.stop == "answered"
    assert whole.world.session.replay(whole.id).held

    for at in range(1, len(whole.records) + 1):
        before = whole.records[:at]
        made = whole.cut(sandbox, at)

        run = made.session.resume(whole.id, in_doubt="retry")

        assert run.answer == whole.run.answer
        assert verify_ledger(made.ledger, [run.run]).first_bad is None
        report = made.session.replay(run.run)
        assert report.held, report.divergence
        assert not set(made.asked) & keys_of(whole.id, before)
        if not in_doubt(before):
            assert without_time(run.charge) == without_time(whole.run.charge)


def test_a_run_that_a_cap_ended_as_it_fell_back_goes_on_as_code(sandbox: WasmSandbox) -> None:
    made = world(sandbox, (Planned("CANNOT"), program("FINAL(context[:4])")))
    run = made.session.run(
        GOAL, limits=RunLimits(turns=1), inputs=[given_text(STORY)], strategy="direct"
    )
    assert run.stop == "max_turns"

    resumed = made.session.resume(run.run, limits=RunLimits(turns=3))

    assert (resumed.answer, resumed.turns) == (STORY[:4], 2)
    assert made.session.replay(run.run).held


def test_a_direct_run_that_was_not_paid_for_goes_on_directly(sandbox: WasmSandbox) -> None:
    made = world(sandbox, (Planned("Riga"),))
    run = made.session.run(
        GOAL, limits=RunLimits(tokens=1_000), inputs=[given_text(STORY)], strategy="direct"
    )
    assert run.stop == "budget"

    resumed = made.session.resume(run.run, limits=ROOMY)

    assert (resumed.answer, resumed.turns) == ("Riga", 1)
    assert made.session.replay(run.run).held


def test_a_fork_keeps_the_strategy(sandbox: WasmSandbox) -> None:
    whole = run_whole(sandbox, "direct", Planned("CANNOT"), program("FINAL(7)"))
    beside = world(
        sandbox,
        (Planned("Oslo"),),
        ledger=whole.world.ledger,
        attachments=whole.world.session.attachments,
    )

    fork = beside.session.fork(whole.id, turn=0)

    assert (fork.answer, fork.turns) == ("Oslo", 1)
    assert STORY in beside.model.asked[0]
    assert beside.session.replay(fork.run).held


def test_who_awaits_says_the_strategy_too(sandbox: WasmSandbox) -> None:
    session = Session(model=kept("Riga"), ledger=MemoryLedger(), sandbox=sandbox)

    run = asyncio.run(session.arun("where?", inputs=[given_text(STORY)], strategy="direct"))

    assert run.answer == "Riga"


# -- before a run ------------------------------------------------------------------------------


def estimate(*texts: str, model: Any = None, **limits: Any) -> Estimate:
    inputs = [given_text(text, name=f"{n}.txt") for n, text in enumerate(texts)]
    return estimate_run(
        model or kept(), "where?", inputs=inputs, limits=RunLimits(**limits), pricing=PRICING
    )


def test_an_estimate_has_every_strategy_and_the_one_that_auto_takes() -> None:
    found = estimate(STORY)

    direct, code, recursive = found.strategies
    assert [each.strategy for each in found.strategies] == ["direct", "code", "recursive"]
    assert (direct.calls, code.calls, recursive.calls) == (1, 4, 5)
    assert direct.tokens < code.tokens < recursive.tokens
    assert direct.usd is not None
    assert code.usd == found.usual_usd
    assert found.auto == "direct"
    assert not direct.why_not


def test_an_estimate_says_why_a_run_cannot_be_direct() -> None:
    assert "do not fit the model" in estimate(STORY * 70).strategies[0].why_not
    assert "are left" in estimate(STORY, tokens=1_000).strategies[0].why_not
    assert "stay on the host" in estimate("word " * 800_001).strategies[0].why_not


def test_the_estimate_of_a_direct_run_is_what_it_then_costs(sandbox: WasmSandbox) -> None:
    played = play(sandbox, kept("Riga"), goal="where?", inputs=[given_text(STORY)],
                  strategy="direct")  # fmt: skip

    (replied,) = of(played, ModelReplied)
    about = estimate(STORY).strategies[0].tokens - 100
    assert abs(replied.usage.tokens_in - about) < 0.1 * about
