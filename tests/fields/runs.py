"""Rows for the limits of runs, and for the arguments of the methods that start them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from tests.fields.table import Row, World, ran, refused, told

from tallystick import Agent, Budget, Memory, RunLimits, Skills, tool
from tallystick.attachments import MemoryAttachments, verify_attachments
from tallystick.core.records import RunResumed
from tallystick.inputs import given_text
from tallystick.ledger import MemoryLedger, SqliteLedger
from tallystick.model import NOT_RECEIVED, UNKNOWN, ModelError, Pricing
from tallystick.runtime.runs.history import records_of
from tallystick.testing.ledgers import CutLedger
from tallystick.testing.models import PRICING, ModelDouble, block, by_prompt, programs
from tallystick.testing.sandbox import PlainSandbox
from tallystick.vocabulary import read_vocabulary

CENT = 10**7
CALL = "FINAL(look('a'))"
CALL_EFFECT = "FINAL(post('a'))"
TWO = ("x = 1", "FINAL(x)")
CHILD = "FINAL(rlm_query('deeper?', context='a'))"


@tool(reads=True)
def look(what: str) -> str:
    """Look something up."""
    return what


@tool
def post(what: str) -> str:
    """Post something."""
    return what


def overloaded() -> ModelError:
    return ModelError(reason="rate_limit", message="try again", retry_after_ms=1)


def limited(*sources: str, **more: Any) -> Any:
    """Return a look at the result of a run with a limit."""

    def see(world: World, value: RunLimits) -> object:
        return ran(*sources, limits=value, functions=[look], **more).result

    return see


def budgeted(*sources: str, **more: Any) -> Any:
    """Return a look at the result of a run of a client with a budget."""

    def see(world: World, value: Budget) -> object:
        options = {"budget": value}
        return ran(*sources, options=options, functions=[look], **more).result

    return see


def depths(world: World, limits: RunLimits) -> object:
    """Look at the models and runs that a question inside a question reaches."""
    answers = {"deeper": block("FINAL('below')")}
    run = ran(
        limits=limits,
        model={"answers": by_prompt(lambda text: _answer(text, answers))},
    )
    return told(run, ("ChildBegun", "QueryAsked"))


def _answer(text: str, answers: dict[str, str]) -> str:
    found = [reply for word, reply in answers.items() if word in text and CHILD not in text]
    return found[0] if found else block(CHILD)


LIMITS = [
    Row("RunLimits.turns", "result", RunLimits(turns=1), RunLimits(turns=5), limited(*TWO)),
    Row("RunLimits.tokens", "result", RunLimits(tokens=100), RunLimits(), limited(*TWO)),
    Row("RunLimits.host_calls", "result", RunLimits(host_calls=0), RunLimits(), limited(CALL)),
    Row("RunLimits.wall_ms", "result", RunLimits(wall_ms=0), RunLimits(), limited(*TWO)),
    Row(
        "RunLimits.reply_tokens",
        "prompt",
        RunLimits(reply_tokens=10),
        RunLimits(reply_tokens=20),
        lambda world, value: ran(*TWO, limits=value).model.caps,
    ),
    Row(
        "RunLimits.retries",
        "result",
        RunLimits(retries=0),
        RunLimits(retries=1),
        lambda world, value: ran(*TWO, limits=value, model={"failures": [overloaded()]}).result,
    ),
    Row("RunLimits.usd", "result", RunLimits(usd=1), RunLimits(usd=CENT * 100), limited(*TWO)),
    Row(
        "RunLimits.model_calls",
        "result",
        RunLimits(model_calls=1),
        RunLimits(model_calls=9),
        limited(*TWO),
    ),
    Row("RunLimits.depth", "record", RunLimits(depth=0), RunLimits(depth=5), depths),
    Row("Budget.tokens", "result", Budget(tokens=100), Budget(), budgeted(*TWO)),
    Row("Budget.usd", "result", Budget(usd=1), Budget(), budgeted(*TWO)),
    Row("Budget.model_calls", "result", Budget(model_calls=1), Budget(), budgeted(*TWO)),
    Row("Budget.turns", "result", Budget(turns=1), Budget(), budgeted(*TWO)),
    Row("Budget.host_calls", "result", Budget(host_calls=0), Budget(), budgeted(CALL)),
    Row("Budget.fuel", "result", Budget(fuel=1), Budget(), budgeted(*TWO)),
    Row("Budget.wall_ms", "result", Budget(wall_ms=0), Budget(), budgeted(*TWO)),
    Row("Budget.output_bytes", "result", Budget(output_bytes=0), Budget(), budgeted(
        "print(1)", *TWO)),
    Row("Budget.depth", "refusal", Budget(depth=0), Budget(), lambda world, value: refused(
        lambda: budgeted(*TWO)(world, value))),
]  # fmt: skip


def end_of(agent: Agent, model: ModelDouble, work: Any) -> object:
    """Return how a run ended, what its model was asked, and how deep it was; or its refusal."""
    ended: list[Any] = []
    said = refused(lambda: ended.append(work()))
    if not ended:
        return said.partition(":")[0]
    (first, *_) = records_of(agent.ledger, ended[0].run)
    return ended[0].answer, ended[0].stop, model.prompts, getattr(first, "depth", None)


def of_agent(*sources: str, of: str, made: bool = False) -> Any:
    """Return a look at a run of an agent, which has one argument, or whose run has."""

    def see(world: World, value: object) -> object:
        given: dict[str, Any] = {of: value}
        model = ModelDouble(programs(*(sources or ("FINAL(1)",))))
        with Agent(
            model, ledger=MemoryLedger(), sandbox=PlainSandbox(), config=None,  # type: ignore[arg-type]
            clock="fixed", pricing=PRICING, **(given if made else {}),
        ) as agent:  # fmt: skip
            run = {} if made else given
            return end_of(agent, model, lambda: agent.run("?", strategy="code", **run))

    return see


# -- arguments of `Agent.run` --------------------------------------------------------------------


def asked(place: str, *sources: str, **more: Any) -> Any:
    """Return a look at a place of a run with one argument, named by the key `of` in `more`."""
    name = more.pop("of")

    def see(world: World, value: object) -> object:
        return getattr(ran(*(sources or ("FINAL(1)",)), **{**more, name: value}), place)

    return see


def seen_by(name: str) -> Any:
    """Return a look at what a callback of `Agent.run` is called with."""

    def see(world: World, value: bool) -> object:
        heard: list[object] = []

        def note(*given: object) -> None:
            heard.append(type(given[-1]).__name__)

        given: dict[str, Any] = {name: note} if value else {}
        ran(*TWO, **given)
        return heard

    return see


def named_model(world: World, value: str | None) -> object:
    """Look at the answer of a run that names one of two models."""
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(
            Agent(
                model=ModelDouble(programs("FINAL('own')")),
                models={"fake:other": ModelDouble(programs("FINAL('other')"), name="fake:other")},
                sandbox=PlainSandbox(),  # type: ignore[arg-type]
                ledger=MemoryLedger(),
                config=None,
            )
        )
        return refused(lambda: session.run("who?", model=value, strategy="code").answer)


def sub_model(world: World, value: str | None) -> object:
    other = ModelDouble("from another", name="fake:other")
    run = ran(
        "FINAL(llm_query('who?'))",
        model={"queries": ["from its own"]},
        options={"models": {"fake:other": other}},
        sub_model=value,
    )
    return run.result


def session_of(world: World, value: bool) -> object:
    """Look at what the second of two runs finds, with or without a session around both."""
    with Agent(
        model=ModelDouble(
            ["```repl\nx = 1\nFINAL(0)\n```", "```repl\nFINAL('x' in globals())\n```"]
        ),
        ledger=MemoryLedger(),
        sandbox=world.wasm,
        config=None,
    ) as session:
        named = session.sessions.new().id if value else None
        session.run("first?", session=named, strategy="code")
        return session.run("second?", session=named, strategy="code").answer


def skills_folder(world: World) -> Path:
    """Return a folder with one skill."""
    folder = world.fresh() / "shelf-codes"
    folder.mkdir()
    text = "---\nname: shelf-codes\ndescription: Read codes of shelves\n---\nCode 5 is shelf 12.\n"
    (folder / "SKILL.md").write_text(text)
    return folder.parent


NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

RUN = [
    Row("Agent.run(goal=)", "prompt", "who?", "where?", asked("prompt", of="goal")),
    Row("Agent.run(inputs=)", "prompt", [given_text("abc")], [], asked("prompt", of="inputs")),
    Row("Agent.run(limits=)", "result", RunLimits(turns=1), RunLimits(), limited(*TWO)),
    Row(
        "Agent.run(grants=)",
        "prompt",
        ["attachments.read"],
        [],
        asked("prompt", of="grants"),
    ),
    Row("Agent.run(seed=)", "record", 1, 2, lambda world, value: ran(
        "import random\nFINAL(random.random())", seed=value, sandbox=world.wasm).result),
    Row("Agent.run(temperature=)", "prompt", 0.1, 0.9, asked("prompt", of="temperature")),
    Row("Agent.run(watch=)", "output", True, False, seen_by("watch")),
    Row("Agent.run(heard=)", "output", True, False, seen_by("heard")),
    Row("Agent.run(model=)", "result", None, "fake:nosuch", named_model),
    Row("Agent.run(strategy=)", "prompt", "code", "direct", asked(
        "prompt", of="strategy", inputs=[given_text("abc")])),
    Row("Agent.run(compact_at=)", "prompt", 1, 0, asked(
        "prompt", *(f"print({n} * 'words to read ' * 200)" for n in range(4)), "FINAL(1)",
        of="compact_at")),
    Row("Agent.run(answer=)", "prompt", NUMBER, None, of_agent("FINAL({'n': 1})", of="answer")),
    Row("Agent.run(files=)", "prompt", ["examples/books.csv"], [], of_agent(of="files")),
    Row("Agent.run(max_usd=)", "result", "0.000000001", None, of_agent(*TWO, of="max_usd")),
    Row("Agent.run(max_tokens=)", "result", 100, None, of_agent(*TWO, of="max_tokens")),
    Row("Agent.run(instructions=)", "prompt", "Be brief.", None, of_agent(of="instructions")),
    Row("Agent.run(recursion_depth=)", "record", 3, 0, of_agent(of="recursion_depth")),
    Row("Agent.run(skills=)", "prompt", ["shelf-codes"], [], lambda world, value: ran(
        "FINAL(1)", options={"skills": Skills.of(skills_folder(world))}, skills=value).prompt),
    Row("Agent.run(session=)", "result", True, False, session_of),
    Row("Agent.run(clock=)", "prompt", "2026-03-01T09:30", "fixed", asked("prompt", of="clock")),
    Row("Agent.run(timezone=)", "prompt", "Asia/Tokyo", "UTC", asked("prompt", of="timezone")),
    Row("Agent.run(sub_model=)", "result", "fake:other", None, sub_model),
]  # fmt: skip


# -- arguments of `Agent` ------------------------------------------------------------------------


def option(place: str, *sources: str, of: str, **more: Any) -> Any:
    """Return a look at a place of a run of a client with one argument."""

    def see(world: World, value: object) -> object:
        return getattr(ran(*(sources or ("FINAL(1)",)), **more, options={of: value}), place)

    return see


def client(world: World, value: object, *, of: str, **more: Any) -> str:
    """Return the refusal of a client that is made with an argument, or of its first run."""

    def work() -> object:
        given = {"model": ModelDouble(), "ledger": MemoryLedger(), "config": None, **more}
        with Agent(**{**given, of: value}) as session:
            return session.run("?", strategy="code")

    return refused(work)


def which_ledger(world: World, value: str) -> object:
    if value == "memory":
        return ran("FINAL(1)", ledger=MemoryLedger()).played.run.ledger
    with SqliteLedger(world.fresh() / "l.db") as ledger:
        return Path(ran("FINAL(1)", ledger=ledger).played.run.ledger).name


def which_store(world: World, value: bool) -> object:
    """Look at whether the store of a client's own has the attachments of its run."""
    store = MemoryAttachments()
    options = {"attachments": store} if value else {}
    ran("FINAL(1)", inputs=[given_text("x" * 100_000)], options=options)
    return verify_attachments(store).references


def with_memory(world: World, value: bool) -> object:
    with Memory.open(directory=world.fresh(), embedder=None) as memory:
        memory.remember("the ferry leaves at nine")
        return ran("FINAL(1)", options={"memory": memory if value else None}).prompt


def cut_off(writes: int, *sources: str, **more: Any) -> tuple[CutLedger, str]:
    """Return a ledger in which a run was cut off after so many writes, and the id of the run."""
    whole = CutLedger()
    run = ran(*sources, ledger=whole, **more).played.run.run
    return whole.cut(writes), run


# A claim, the start, and the question to the model, whose answer is not known.
IN_DOUBT = 2


def resumed(ledger: CutLedger, run: str, *sources: str, **how: Any) -> Any:
    """Resume a run on plain Python, and return how it ended, or the refusal."""
    given = {"model": ModelDouble(programs(*sources)), "ledger": ledger, "config": None}
    options = how.pop("options", {})
    with Agent(**{**given, "sandbox": PlainSandbox(), **options}) as session:
        said = refused(lambda: how.setdefault("ended", session.resume(run, **how)))
    return said.partition(":")[0] or how["ended"]


def looked_up(world: World, value: object) -> object:
    """Look at what becomes of a call in doubt when the provider says one thing or another."""
    ledger, run = cut_off(IN_DOUBT, "FINAL(1)")

    async def find(model: str, key: str) -> object:
        return value

    ended = resumed(ledger, run, "FINAL(1)", options={"lookup": find})
    return getattr(ended, "stop", ended)


def said_to(world: World, value: bool) -> object:
    said: list[str] = []
    folder = world.fresh()
    (folder / "tallystick.toml").write_text("max_turns = 1000\n")
    with contextlib.chdir(folder), client_of(**({"say": said.append} if value else {})) as session:
        session.run("?", strategy="code")
    return bool(said)


def client_of(**options: Any) -> Agent:
    """Return a client whose run has two turns, with these arguments."""
    return Agent(
        model=ModelDouble(programs(*TWO)),
        ledger=MemoryLedger(),
        sandbox=PlainSandbox(),  # type: ignore[arg-type]
        **options,
    )


def configured(world: World, value: Any) -> object:
    folder = world.fresh()
    (folder / "tallystick.toml").write_text("max_turns = 1\n")
    with contextlib.chdir(folder), client_of(config=value) as session:
        return session.run("?", strategy="code").stop


SESSION = [
    Row("Agent(model=)", "result", ModelDouble(programs("FINAL(1)")), ModelDouble(
        programs("FINAL(2)")), option("result", of="model", model={"answers": "unused"})),
    Row("Agent(tools=)", "prompt", [look], [], option("prompt", of="tools")),
    Row("Agent(ledger=)", "result", "memory", "file", which_ledger),
    Row("Agent(attachments=)", "record", True, False, which_store),
    Row("Agent(sandbox=)", "result", {"n": 1}, {"n": 2}, lambda world, value: ran(
        "FINAL(n)", names=value).result),
    Row("Agent(backend=)", "refusal", "nosuch", "wasm", lambda world, value: client(
        world, value, of="backend", sandbox=None).partition(";")[0]),
    Row("Agent(accept_without=)", "refusal", ["nosuch"], [], lambda world, value: client(
        world, value, of="accept_without")),
    Row("Agent(models=)", "result", {"fake:other": ModelDouble("yes", name="fake:other")}, {},
        option("result", "FINAL(llm_query('?', model='fake:other'))", "FINAL('no')", of="models")),
    Row("Agent(budget=)", "result", Budget(turns=1), Budget(), budgeted(*TWO)),
    Row("Agent(total=)", "result", Budget(usd=1), Budget(), lambda world, value: ran(
        *TWO, ledger=SqliteLedger(world.fresh() / "l.db"), options={"total": value}).result),
    Row("Agent(pricing=)", "result", PRICING, Pricing(), lambda world, value: ran(
        *TWO, pricing=value).played.run.charge.usd),
    Row("Agent(lookup=)", "record", NOT_RECEIVED, UNKNOWN, looked_up),
    Row("Agent(skills=)", "prompt", True, False, lambda world, value: ran(
        "FINAL(1)", options={"skills": Skills.of(skills_folder(world)) if value else None}).prompt),
    Row("Agent(memory=)", "prompt", True, False, with_memory),
    Row("Agent(vocabulary=)", "record", read_vocabulary("strict", None, name=""), None, option(
        "record", "nosuch(1)", "FINAL(1)", of="vocabulary")),
    Row("Agent(clock=)", "prompt", "2026-03-01T09:30", "fixed", option("prompt", of="clock")),
    Row("Agent(timezone=)", "prompt", "Asia/Tokyo", "UTC", option("prompt", of="timezone")),
    Row("Agent(ask=)", "result", lambda name, given, named: True, None, option(
        "result", CALL_EFFECT, of="ask", functions=[post])),
    Row("Agent(say=)", "output", True, False, said_to),
    Row("Agent(instructions=)", "prompt", "Be brief.", None, of_agent(
        of="instructions", made=True)),
    Row("Agent(max_usd=)", "result", "0.000000001", None, of_agent(*TWO, of="max_usd", made=True)),
    Row("Agent(max_tokens=)", "result", 100, None, of_agent(*TWO, of="max_tokens", made=True)),
    Row("Agent(config=)", "result", "auto", None, configured),
]  # fmt: skip


# -- arguments of `resume`, `fork`, `replay`, `use` ------------------------------------------------


def resumed_with(writes: int, *sources: str, of: str, **more: Any) -> Any:
    """Return a look at the end of a run that was cut off and is resumed with one argument."""

    def see(world: World, value: object) -> object:
        how = {"in_doubt": more.pop("in_doubt")} if "in_doubt" in more else {}
        ledger, run = cut_off(writes, *sources, **more)
        more.update(how)
        ended = resumed(ledger, run, *sources, **{**how, of: value})
        return getattr(ended, "stop", ended)

    return see


def which_run(method: str) -> Any:
    """Return a look at the refusal of a run that is, or is not, in the ledger."""

    def see(world: World, value: bool) -> object:
        observed = ran("FINAL(1)")
        run = observed.played.run.run if value else "nosuch"
        more = {"turn": 0} if method == "fork" else {}
        observed.model.answers = programs("FINAL(1)")
        return refused(lambda: getattr(observed.played.session, method)(run, **more))

    return see


def stolen(world: World, value: bool) -> object:
    """Look at the refusal of a run that another client works on."""
    from tallystick.runtime.runs.lock import lock_run

    ledger = SqliteLedger(world.fresh() / "l.db")
    with ledger:
        run = ran(*TWO, ledger=ledger, limits=RunLimits(turns=1)).played.run.run
        with Agent(
            model=ModelDouble(programs(*TWO)), ledger=ledger, config=None,
            sandbox=PlainSandbox(),  # type: ignore[arg-type]
        ) as session, lock_run(ledger, run):  # fmt: skip
            said = refused(lambda: session.resume(run, steal=value, limits=RunLimits(turns=5)))
    return said.replace(run, "RUN")


def decided(of: str) -> Any:
    """Return a look at the record of a run that waits for a person, and gets a decision."""

    def see(world: World, value: object) -> object:
        strict = {"vocabulary": read_vocabulary("strict", None, name="")}
        waits = ran(*["nosuch(1)"] * 9, options=strict)
        assert waits.played.run.stop == "waiting"
        waits.model.answers = lambda call: block("FINAL(2)")
        given: dict[str, Any] = {"decision": "deny", "by": "ann", of: value}
        session, run = waits.played.session, waits.played.run.run
        said = refused(lambda: session.resume(run, **given))
        records = records_of(waits.played.ledger, run)
        decisions = [(each.decision, each.by) for each in records if isinstance(each, RunResumed)]
        return said.partition(";")[0], decisions

    return see


def resumed_sub_model(world: World, value: str | None) -> object:
    """Look at whether a recorded model for sub-calls is found by another name."""
    source = "FINAL(llm_query('who?'))"
    other = ModelDouble("yes", name="fake:other")
    ledger, run = cut_off(
        IN_DOUBT + 1, source, options={"models": {"sub": other}}, sub_model="sub",
    )  # fmt: skip
    there = ModelDouble("yes", name="fake:other")
    options = {"models": {"elsewhere": there}}
    ended = resumed(ledger, run, source, sub_model=value, options=options, in_doubt="retry")
    return getattr(ended, "answer", ended)


def continued(method: str, callback: str) -> Any:
    """Return a look at what a callback of `resume` or `fork` is called with."""

    def see(world: World, value: bool) -> object:
        heard: list[object] = []
        first = ran(*TWO, limits=RunLimits(turns=1))
        first.model.answers = lambda call: block("FINAL(2)")
        more: dict[str, Any] = {"limits": RunLimits(turns=5)}
        if value:
            more[callback] = lambda *given: heard.append(type(given[-1]).__name__)
        if method == "fork":
            more["turn"] = 1
        getattr(first.played.session, method)(first.played.run.run, **more)
        return heard

    return see


def forked(of: str) -> Any:
    """Return a look at what a fork with one argument asks the model, and how it ends."""

    def see(world: World, value: object) -> object:
        first = ran(*TWO)
        asked_before = len(first.model.requests)
        first.model.answers = programs("x = 1", "x = 3", "x = 3", "FINAL(x)")
        given: dict[str, Any] = {"turn": 1, of: value}
        ended = first.played.session.fork(first.played.run.run, **given)
        return ended.stop, ended.turns, first.model.temperatures[asked_before:]

    return see


def replayed(world: World, value: int | None) -> object:
    first = ran("FINAL(sum(range(3)))")
    return refused(
        lambda: first.played.session.replay(first.played.run.run, timeout_ms=value)
    ).partition(":")[0]


CONTINUE = [
    Row("Agent.resume(run=)", "refusal", True, False, which_run("resume")),
    Row("Agent.resume(in_doubt=)", "result", "halt", "retry", resumed_with(
        IN_DOUBT, "FINAL(1)", of="in_doubt")),
    Row("Agent.resume(limits=)", "result", RunLimits(turns=1), RunLimits(turns=5), resumed_with(
        99, *TWO, of="limits", limits=RunLimits(turns=1))),
    Row("Agent.resume(max_usd=)", "result", "0.000000001", None, resumed_with(
        2, *TWO, of="max_usd", in_doubt="retry")),
    Row("Agent.resume(max_tokens=)", "result", 100, None, resumed_with(
        2, *TWO, of="max_tokens", in_doubt="retry")),
    Row("Agent.resume(steal=)", "refusal", True, False, stolen),
    Row("Agent.resume(decision=)", "record", "approve", "deny", decided("decision")),
    Row("Agent.resume(by=)", "record", "ann", "bob", decided("by")),
    Row("Agent.resume(sub_model=)", "result", "elsewhere", "nosuch", resumed_sub_model),
    Row("Agent.resume(watch=)", "output", True, False, continued("resume", "watch")),
    Row("Agent.resume(heard=)", "output", True, False, continued("resume", "heard")),
    Row("Agent.fork(run=)", "refusal", True, False, which_run("fork")),
    Row("Agent.fork(turn=)", "result", 0, 1, forked("turn")),
    Row("Agent.fork(limits=)", "result", RunLimits(turns=2), RunLimits(), forked("limits")),
    Row("Agent.fork(temperature=)", "prompt", 0.1, 0.9, forked("temperature")),
    Row("Agent.fork(max_usd=)", "result", "0.000000001", None, forked("max_usd")),
    Row("Agent.fork(max_tokens=)", "result", 100, None, forked("max_tokens")),
    Row("Agent.fork(watch=)", "output", True, False, continued("fork", "watch")),
    Row("Agent.fork(heard=)", "output", True, False, continued("fork", "heard")),
    Row("Agent.replay(run=)", "refusal", True, False, which_run("replay")),
    Row("Agent.replay(timeout_ms=)", "refusal", 0, None, replayed),
]  # fmt: skip

ROWS = [*LIMITS, *RUN, *SESSION, *CONTINUE]
