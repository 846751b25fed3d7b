"""Every kind of effect keeps the same laws: it happens at most once, and is written down.

A turn's model call, one of a program, a batch of them, a function with an effect, one that only
reads, a run inside: each is replayed, cut off anywhere, resumed, retried, refused and forked, and
what holds of one holds of all. That whoever waits for money is woken when it is settled is a law of
the line, `tests/runtime/spend/test_line.py`; programs that are native need a box, and keep these
laws in `tests/runtime/programs/test_native_runs.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.laws.effect_runs import (
    CHILD,
    KINDS,
    LOST_CHILD,
    Kind,
    Lived,
    Living,
    begun_without_end,
    chains_of,
    check_keys,
    continues_behind_program,
    heads_of,
    known_keys,
    lived,
    open_in,
    reopened,
    with_program,
    written,
)
from tests.runtime.run.cut_runs import ROOMY, without_time

from tallystick.core.charge import RunLimits
from tallystick.core.errors import ReplayDiverged
from tallystick.core.history import History, Key, key_of
from tallystick.core.machine import machine
from tallystick.core.records import (
    DOUBTED,
    AskModel,
    CallHost,
    ChildEnded,
    HostAnswered,
    ModelFailed,
    ModelRefused,
    ModelReplied,
    ProgramFinished,
    QueryAsked,
    QueryFailed,
    QueryRecord,
    QueryRefused,
    QueryReplied,
    RunResumed,
)
from tallystick.core.resume_errors import RunInDoubt
from tallystick.core.views.open_calls import open_calls, open_intents
from tallystick.ledger.verify import verify_ledger
from tallystick.runtime.calls import decisions, queries
from tallystick.runtime.journal.effects import Decisions
from tallystick.runtime.run import resume
from tallystick.runtime.run.fork import shared_records
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.ledgers import CutLedger
from tallystick.testing.plans import Planned

Runs = dict[str, Lived]
slow = pytest.mark.slow
every_kind = pytest.mark.parametrize("name", KINDS)


@pytest.fixture(scope="module", autouse=True)
def at_once() -> Iterator[None]:
    """Attempts after the first wait for nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "_WAIT_MS", 0)
        patch.setattr(queries, "_WAIT_MS", 0)
        yield


@pytest.fixture(scope="module")
def runs(sandbox: WasmSandbox) -> Runs:
    """A run of each kind that came to its answer."""
    made = {name: lived(sandbox, kind) for name, kind in KINDS.items()}
    assert {each.run.stop for each in made.values()} == {"answered"}
    return made


def check_sound(made: Lived) -> None:
    """What holds of every run that has ended, however often it was resumed."""
    assert verify_ledger(made.ledger).first_bad is None
    assert open_in(made.ledger) == []
    check_keys(made.ledger)
    assert len(set(made.world.asked)) == len(made.world.asked)
    assert set(made.world.asked) <= known_keys(made.ledger)
    made.tree.quiet()
    check_replays(made)


def check_replays(made: Lived) -> None:
    """A replay of it, and of the runs inside, makes nothing happen and ends alike."""
    before, heads = list(made.happened), heads_of(made.ledger)
    for run in made.chains():
        report = made.world.session.replay(run)
        assert report.held, report.divergence
    assert made.happened == before
    assert heads_of(made.ledger) == heads


def doubts_of(living: Living) -> set[tuple[str, int, tuple[int, ...]]]:
    """What a resume names that may decide nothing; nothing is done or written then."""
    heads = heads_of(living.ledger)
    with pytest.raises(RunInDoubt) as caught:
        living.resume(in_doubt="halt")
    assert (living.world.asked, living.read) == ([], [])
    assert heads_of(living.ledger) == heads
    named = caught.value.open
    return {(each.run or living.before.id, each.intent, each.items) for each in named}


def check_whole(again: Lived, whole: Lived, left: CutLedger) -> None:
    """What holds of a run that was resumed over what it had left."""
    assert (again.run.stop, again.run.answer) == (whole.run.stop, whole.run.answer)
    assert not set(again.world.asked) & known_keys(left)
    records, before = again.chains()[again.id], chains_of(left)[again.id]
    assert records[: len(before)] == before
    if len(records) > len(before):
        # It says that it was resumed, and its budget counts what it has spent, once.
        assert isinstance(records[len(before)], RunResumed)
        assert again.tree.spent[again.id]["usd"] == (again.run.charge.usd or 0)
    check_sound(again)


# -- 1, 7: a replay ------------------------------------------------------------------------------


@every_kind
def test_a_replay_makes_nothing_happen(runs: Runs, name: str) -> None:
    check_sound(runs[name])


NO_HOST_CALL = RunLimits(tokens=10_000_000, host_calls=0, turns=2)
# What a run may do that is refused its call; else it has money for two turns and nothing more.
SHORT = {
    "turn": RunLimits(tokens=10_000_000, model_calls=1),
    **dict.fromkeys(["effect", "local effect", "read"], NO_HOST_CALL),
}
TWO_CALLS = RunLimits(tokens=10_000_000, model_calls=2)


@every_kind
def test_a_refusal_is_an_outcome_and_under_a_higher_limit_the_call_is_asked_again(
    runs: Runs, sandbox: WasmSandbox, name: str
) -> None:
    first, call, last = KINDS[name].plan
    # Its model asks for the same once more.
    stopped = lived(
        sandbox, KINDS[name], plan=[first, call, call, last], limits=SHORT.get(name, TWO_CALLS)
    )

    records = stopped.chains()[stopped.id]
    finished = [each for each in records if isinstance(each, ProgramFinished)]
    before = 1
    if name == "turn":
        assert any(isinstance(each, ModelRefused) for each in records)
        before = 3
    elif name in SHORT:
        # A program is ended that calls more often than it may.
        assert finished[1].stop != "finished"
        assert (stopped.world.effects.keys, stopped.read) == ([], [])
    else:
        assert any(isinstance(each, QueryRefused) for each in records)
        # It was told, and counted that.
        before = int(finished[1].stdout.split()[-1])
    assert stopped.run.stop != "answered"
    assert len(stopped.world.model.keys) == (1 if name == "turn" else 2)
    check_sound(stopped)

    again = reopened(stopped, sandbox, stopped.cut(len(stopped.ledger.acts))).resume(limits=ROOMY)

    assert again.run.stop == "answered"
    assert int(again.run.answer or "") == before + int(runs[name].run.answer or "") - 1
    assert not set(again.world.asked) & known_keys(stopped.ledger)
    check_sound(again)


FAILING = {
    "query": Kind("len(llm_query('fails 1 x'))", QueryAsked),
    "query for ever": Kind("len(llm_query('never'))", QueryAsked),
    "batch": Kind("len(str(llm_query_batched(['a', 'never', 'fails 1'])))", QueryAsked),
    "effect": Kind("note('no')", CallHost),
    "read": Kind("fetch(1, 2, 3)", None),
    "child": Kind(f"len(rlm_query({LOST_CHILD!r}))", AskModel, inside=True),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_failure_is_an_outcome(sandbox: WasmSandbox, name: str) -> None:
    failed = lived(sandbox, FAILING[name])
    records = failed.chains()[failed.id]

    assert failed.run.stop == "answered"
    failures = [each for each in records if isinstance(each, QueryFailed)]
    if FAILING[name].begins is QueryAsked:
        assert failures
        assert all(each.settled is not None for each in failures)
    elif name == "child":
        assert [each.stop for each in records if isinstance(each, ChildEnded)] == ["refused"]
    else:
        assert [each for each in records if isinstance(each, HostAnswered)]
    check_sound(failed)

    # Cut off behind the first failure, it is not asked again under the same key.
    at = failed.places()[-3]
    again = reopened(failed, sandbox, failed.cut(at)).resume()
    check_whole(again, failed, failed.cut(at))


def test_a_turn_that_fails_is_an_outcome(sandbox: WasmSandbox) -> None:
    first, call, last = KINDS["turn"].plan
    failing = [first, Planned(call.text, failures=1), last]
    failed = lived(sandbox, KINDS["turn"], plan=failing)

    (failure,) = [each for each in failed.chains()[failed.id] if isinstance(each, ModelFailed)]
    assert failed.run.stop == "answered"
    assert failure.settled is not None
    check_sound(failed)


# -- 2, 3: cut off anywhere, resumed any number of times -------------------------------------------


def check_cut(sandbox: WasmSandbox, whole: Lived, at: int) -> Lived:
    left = whole.cut(at)
    doubtful = {
        (run, each.intent, each.items)
        for run, records in chains_of(left).items()
        for each in open_intents(records)
    }
    living = reopened(whole, sandbox, whole.cut(at))
    if doubtful:
        assert doubts_of(living) == doubtful

    again = living.resume()

    check_whole(again, whole, left)
    if not doubtful:
        charges = again.run.charge, whole.run.charge
        assert without_time(charges[0]) == without_time(charges[1])
    return again


@every_kind
def test_a_run_cut_off_under_its_call_names_it_and_is_resumed_again_and_again(
    runs: Runs, sandbox: WasmSandbox, name: str
) -> None:
    whole = runs[name]
    at = (whole.doubtful() or whole.places()[-4:-3])[-1]
    again = check_cut(sandbox, whole, at)

    # Once more, where the first resume had only begun, and from the middle of that.
    for share in (2, 1):
        acts = len(again.ledger.acts)
        later = next(n for n in range(at + share, acts + 1) if again.cut(n).runs())
        again = check_resumed_again(sandbox, whole, again, later)


def check_resumed_again(sandbox: WasmSandbox, whole: Lived, before: Lived, at: int) -> Lived:
    again = reopened(before, sandbox, before.cut(at)).resume()
    check_whole(again, whole, before.cut(at))
    return again


@slow
@every_kind
def test_a_run_is_resumed_from_every_place(runs: Runs, sandbox: WasmSandbox, name: str) -> None:
    whole = runs[name]
    for at in whole.places():
        again = check_cut(sandbox, whole, at)
        if at < len(whole.ledger.acts):
            middle = (at + len(again.ledger.acts)) // 2 + 1
            check_resumed_again(sandbox, whole, again, middle)


# -- 4, 5: halt, decide, resume --------------------------------------------------------------------

IN_DOUBT = [name for name, kind in KINDS.items() if kind.begins is not None]


@pytest.mark.parametrize("policy", ["retry", "abandon"])
@pytest.mark.parametrize("name", IN_DOUBT)
def test_a_halt_a_decision_and_a_resume(
    runs: Runs, sandbox: WasmSandbox, name: str, policy: Any
) -> None:
    whole = runs[name]
    at = whole.doubtful()[-1]
    left = whole.cut(at)
    known, calls = known_keys(left), open_in(left)
    assert calls
    living = reopened(whole, sandbox, whole.cut(at))
    doubts_of(living)
    # It halts as often as nobody decides.
    doubts_of(living)

    again = living.resume(in_doubt=policy)

    assert not set(again.world.asked) & known
    records = again.chains()
    assert open_in(again.ledger) == []
    check_keys(again.ledger)
    check_replays(again)
    for run, call in calls:
        if isinstance(call, CallHost):
            # An effect keeps its key, so that whoever gets it can tell, and says how often.
            begun = History(records[run]).begun(key_of(call))
            attempts = [each.attempt for each in begun if isinstance(each, CallHost)]
            assert attempts == ([1, 2] if policy == "retry" else [1])
            continue
        assert isinstance(call, AskModel | QueryAsked)
        (ended,) = [
            each
            for each in records[run]
            if isinstance(each, ModelFailed | QueryFailed) and key_of(each) == key_of(call)
        ]
        # Lost, it is charged as it was reserved.
        assert ended.reason == DOUBTED
        assert call.reserved is not None
        assert ended.settled is not None
        assert ended.settled.usd == call.reserved.usd
        assert ended.settled.tokens_in == call.reserved.tokens_in
        assert ended.settled.tokens_out == call.reserved.tokens_out
        next_ones = [
            each
            for each in records[run][records[run].index(ended) :]
            if type(each) is type(call) and getattr(each, "item", 0) == getattr(call, "item", 0)
        ]
        if policy == "retry":
            # A new attempt, with a reservation of its own.
            assert next_ones
            assert key_of(next_ones[0]) != key_of(call)
            assert next_ones[0].reserved is not None
        elif isinstance(call, QueryAsked):
            assert not [each for each in next_ones if each.intent == call.intent]
    if policy == "retry":
        check_whole(again, whole, left)


# -- 6: open reservations ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["turn", "query", "batch", "whole batch", "child", "children"])
def test_what_open_calls_reserved_counts_before_anything_new_is_reserved(
    runs: Runs, sandbox: WasmSandbox, name: str
) -> None:
    whole = runs[name]
    at = max(whole.doubtful(), key=lambda place: len(open_in(whole.cut(place))))
    living = reopened(whole, sandbox, whole.cut(at))
    open_usd = sum(
        call.reserved.usd or 0
        for _, call in open_in(living.ledger)
        if isinstance(call, AskModel | QueryAsked) and call.reserved is not None
    )
    known_usd = sum(
        each.settled.usd or 0
        for records in chains_of(living.ledger).values()
        for each in records
        if isinstance(each, ModelReplied | QueryReplied) and each.settled is not None
    )
    assert open_usd
    counted: list[int] = []
    reserve = living.tree.reserve

    def reserving(scope: str, worst: Any, **more: Any) -> Any:
        root = living.tree.chain(scope)[-2]
        counted.append(living.tree.spent[root]["usd"] + living.tree.held[root]["usd"])
        return reserve(scope, worst, **more)

    living.tree.reserve = reserving  # type: ignore[method-assign]
    again = living.resume()

    assert counted[0] == known_usd + open_usd
    check_whole(again, whole, whole.cut(at))


# -- 9: a call more --------------------------------------------------------------------------------

# Before its answer is written, a record does not say how many a batch asked: one that begins with
# the recorded question is that call, as far as can be told.
MORE = {
    "query": "llm_query('one more')",
    "batch": "llm_query_batched(['more', 'and more'])",
    "whole batch": "llm_query_batched(['more', 'and more'], fit='whole')",
    "effect": "send('one more')",
    "local effect": "note('one more')",
    "child": f"rlm_query({CHILD!r}, context='one more')",
    # It may be looked at: nothing is sent by that.
    "read": "fetch('one more')",
}


@slow
@pytest.mark.parametrize("more", MORE)
@every_kind
def test_a_program_that_asks_one_call_more_than_its_record_sends_and_writes_nothing(
    runs: Runs, sandbox: WasmSandbox, name: str, more: str
) -> None:
    check_one_more(sandbox, runs[name], more, whole=True)


@pytest.mark.parametrize("more", ["query", "effect", "child", "read"])
@pytest.mark.parametrize("name", ["query", "batch", "effect", "child"])
def test_a_program_that_asks_one_call_more_in_the_middle_of_another_sends_nothing(
    runs: Runs, sandbox: WasmSandbox, name: str, more: str
) -> None:
    check_one_more(sandbox, runs[name], more, whole=False)


def check_one_more(sandbox: WasmSandbox, before: Lived, more: str, *, whole: bool) -> None:
    checked = 0
    for at in before.places() if whole else before.doubtful()[-1:]:
        chains = dict(chains_of(before.cut(at)))
        if not continues_behind_program(chains[before.id]):
            # All that is asked in it is new.
            continue
        chains[before.id] = with_program(
            chains[before.id], before.kind, f"{MORE[more]}\n{before.kind.source}"
        )
        living = reopened(before, sandbox, written(chains))
        heads = heads_of(living.ledger)

        if at == before.places()[-1]:
            # It has its answer, and is not resumed; a replay tells the difference.
            assert not living.world.session.replay(before.id).held
        else:
            with pytest.raises(ReplayDiverged):
                living.resume()

        assert living.world.asked == [], at
        assert heads_of(living.ledger) == heads, at
        checked += 1
    assert checked


def something_else(kind: Kind) -> str:
    """The program of a batch, with another second question."""
    for second, other in (("'bc'", "'cd'"), ("'d'", "'other'")):
        if second in kind.source:
            return kind.source.replace(second, other)
    raise AssertionError(kind)


@pytest.mark.parametrize("name", ["batch", "whole batch", "children"])
def test_a_batch_that_asks_something_else_in_a_later_place_sends_and_writes_nothing(
    runs: Runs, sandbox: WasmSandbox, name: str
) -> None:
    """Its first question had not begun: it is new, and may not be sent before the second."""
    before = runs[name]
    chains = dict(chains_of(before.cut(before.doubtful()[-1])))
    begun = [each for each in chains[before.id] if isinstance(each, QueryRecord)]
    assert {each.item for each in begun} == {0, 1}
    later = [each for each in chains[before.id] if getattr(each, "item", 1) != 0]
    chains[before.id] = with_program(later, before.kind, something_else(before.kind))
    living = reopened(before, sandbox, written(chains))
    heads = heads_of(living.ledger)

    with pytest.raises(ReplayDiverged):
        living.resume()

    assert living.world.asked == []
    assert heads_of(living.ledger) == heads


# -- 10: a fork ------------------------------------------------------------------------------------


@every_kind
def test_a_fork_shares_its_first_turn_and_pays_for_what_is_new(
    runs: Runs, sandbox: WasmSandbox, name: str
) -> None:
    whole = runs[name]
    acts = len(whole.ledger.acts)
    shared = shared_records(whole.id, whole.chains()[whole.id], 1)
    living = reopened(whole, sandbox, whole.cut(acts), recorded=shared)
    heads = heads_of(living.ledger)

    fork = living.world.session.fork(whole.id, turn=1)

    forked = Lived(whole.kind, living.world, fork, living.ledger, living.tree, living.read)
    assert (fork.stop, fork.answer) == (whole.run.stop, whole.run.answer)
    assert without_time(fork.charge) == without_time(whole.run.charge)
    after = heads_of(living.ledger)
    assert {run: after[run] for run in heads} == heads
    # All but the first turn's call, under keys of the fork and of runs inside it.
    assert len(forked.happened) == len(whole.happened) - 1
    assert not set(forked.world.asked) & set(whole.world.asked)
    check_keys(forked.ledger)
    check_replays(forked)


# -- what is open, and what is in doubt ------------------------------------------------------------


class Noting(dict[Key, Any]):
    """Decisions that note for which calls they were asked."""

    def __init__(self, found: dict[Key, Any], asked: list[Key]) -> None:
        super().__init__(found)
        self._asked = asked

    def __getitem__(self, key: Key) -> Any:
        self._asked.append(key)
        return super().__getitem__(key)

    def get(self, key: Key, default: Any = None) -> Any:
        self._asked.append(key)
        return super().get(key, default)


def check_asked(sandbox: WasmSandbox, whole: Lived, at: int) -> None:
    """What a resume finds in doubt is what is open, of the run and of those inside it."""
    chains = chains_of(whole.cut(at))
    expected: set[tuple[str, Key]] = set()
    for run, records in chains.items():
        keys = {key_of(each) for each in open_calls(records)}
        assert keys == begun_without_end(records)
        expected |= {(run, key) for key in keys}
    asked: dict[str, list[Key]] = {}
    decide = decisions.decide

    async def noting(run: str, *args: Any, **more: Any) -> Decisions:
        found = await decide(run, *args, **more)
        return Decisions(Noting(found.open, asked.setdefault(run, [])), found.left)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resume, "decide", noting)
        reopened(whole, sandbox, whole.cut(at)).resume()
    # A run inside is resumed, whatever is decided: that is no call in doubt.
    found = [(run, key) for run, keys in asked.items() for key in keys if key.kind != "child"]
    assert len(set(found)) == len(found)
    assert set(found) == expected


@pytest.mark.parametrize("name", IN_DOUBT)
def test_the_open_calls_are_those_that_a_resume_finds_in_doubt(
    runs: Runs, sandbox: WasmSandbox, name: str
) -> None:
    check_asked(sandbox, runs[name], runs[name].doubtful()[-1])


@slow
@every_kind
def test_the_open_calls_of_every_prefix_are_those_that_a_resume_finds_in_doubt(
    runs: Runs, sandbox: WasmSandbox, name: str
) -> None:
    for at in runs[name].places():
        check_asked(sandbox, runs[name], at)
