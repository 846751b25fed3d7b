"""Start child runs under the limits that their parent has left, or resume them after a crash."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

from tallystick.core.budget.amount import BudgetExhausted, BudgetUnpriced, Dimension
from tallystick.core.budget.tree import affordable_output
from tallystick.core.chain import Head
from tallystick.core.charge import RunLimits
from tallystick.core.history import History
from tallystick.core.machine.prompt import TEMPLATE, Message, opening
from tallystick.core.machine.turn import charge_of_child, limit_reached
from tallystick.core.records import CUT_OFF, Caller, Record, RunEnded, RunStarted
from tallystick.runtime.calls.children import ChildRequest, ChildRunner, Context, Parent
from tallystick.runtime.calls.deltas import HearDelta
from tallystick.runtime.calls.functions import RunFunction
from tallystick.runtime.calls.queries import AskedName, find_asked
from tallystick.runtime.context.inputs import Input, given_text
from tallystick.runtime.run.assembly import RunContext, RunRequest, Watch
from tallystick.runtime.run.start import start_in
from tallystick.runtime.run.surroundings import Surroundings
from tallystick.runtime.runs.decided import Decided
from tallystick.runtime.runs.history import whole_records
from tallystick.runtime.runs.lock import lock_run
from tallystick.runtime.runs.result import Run
from tallystick.runtime.spend.door import REPLY_TOKENS_LEAST, prompt_figure
from tallystick.runtime.spend.slots import ChildSlots

if TYPE_CHECKING:
    from tallystick.runtime.run.resume import ResumeRequest


class ChildRuns:
    """The child runs below one root. They share its client, its watcher and its places.

    `watch` is called with each new record of a child, `heard` while a reply arrives. `resuming` is
    the request for the resume of the root, by which children that were cut off are resumed.
    """

    def __init__(
        self,
        context: RunContext,
        *,
        watch: Watch,
        heard: HearDelta,
        resuming: ResumeRequest | None = None,
    ) -> None:
        self._context = context
        self._watch: Watch | None = watch
        # A watcher may have `waits`, to show how many children wait for a place.
        self._waits: Callable[[str, int], None] | None = getattr(watch, "waits", None)
        self._heard = heard
        self._resuming = resuming
        self._slots = ChildSlots()
        self._decided: Decided | None = None

    def decide(self, decided: Decided | None) -> None:
        """Take in what a person decided about what the children wait for."""
        self._decided = decided

    @property
    def _approved(self) -> Decided | None:
        # An approval of all calls holds for children that begin later, too.
        decided = self._decided
        return decided if decided is not None and decided.approves_all else None

    @property
    def slots(self) -> ChildSlots:
        return self._slots

    def check_model(self, parent: Parent, asked: AskedName) -> None:
        find_asked(self._context.models(parent.model), asked)

    def refusal(
        self, parent: Parent, request: ChildRequest
    ) -> BudgetExhausted | BudgetUnpriced | None:
        """Return the refusal of a child's first call, None if it may be paid.

        The estimate is the shortest prompt that the child can have, and a reply of 16 tokens. Money
        that other calls hold may be given back, so it is no reason to refuse. Nothing is reserved.
        Raise `UsageError` if programs may not ask the model.
        """
        model_door = parent.model_door
        terms = model_door.terms(find_asked(self._context.models(parent.model), request.model))
        try:
            left = model_door.run_scopes.remaining()
            affordable_output(
                left,
                tokens_in=prompt_figure(terms, _shortest(request.prompt)).tokens,
                tokens_out_wanted=parent.limits.reply_tokens,
                tokens_out_min=REPLY_TOKENS_LEAST,
                price=terms.worst,
                usd_waived=terms.decision.policy == "waived",
            )
            if left.model_calls is not None and left.model_calls <= 0:
                raise BudgetExhausted(
                    dimension="model_calls", scope=left.by["model_calls"], needed=1, left=0
                )
        except BudgetExhausted as error:
            return None if model_door.run_scopes.is_held(error) else error
        except BudgetUnpriced as error:
            return error
        return None

    def waits(self, parent: str, change: int) -> None:
        if self._waits is not None and self._watch is not None:
            # Only a display: its error must not end a run.
            with suppress(Exception):
                self._waits(parent, change)

    def _tell(self, run: str, record: Record) -> None:
        """Call the watcher with a record of a child.

        If it fails, it is not called for children any more, and the child continues. The root then
        calls it too, and ends the whole run, with everything recorded that was paid.
        """
        if self._watch is not None:
            try:
                self._watch(run, record)
            except Exception:
                self._watch = None

    async def begin(
        self, parent: Parent, run: str, request: ChildRequest, caller: Caller
    ) -> tuple[Run, Head]:
        context = self._context
        limits = _limits(parent, request)
        asked = RunRequest(
            goal=request.prompt,
            inputs=_inputs(request.context),
            limits=limits,
            grants=parent.grants,
            seed=parent.seed,
            temperature=parent.temperature,
            strategy="code",
            compact_at=parent.compact_at,
            clock=parent.clock,
            watch=self._tell,
            heard=self._heard,
            decided=self._approved,
        )
        with (
            parent.deeper(caller.depth),
            lock_run(context.ledger, run),
            context.client_scopes.child(
                parent.model_door, run, limits, parent=parent.run
            ) as model_door,
        ):
            ended, head, _ = await start_in(
                _for_children(context),
                asked,
                run=run,
                model=find_asked(context.models(parent.model), request.model),
                door=model_door,
                children=self,
                around=_InsideOf(parent),
                caller=caller,
            )
            return ended, head

    async def resume(
        self, parent: Parent, run: str, request: ChildRequest, caller: Caller
    ) -> tuple[Run, Head]:
        # Imported here: most children are never resumed.
        from tallystick.runtime.run.resume import ended_run, resume

        context = self._context
        row = context.ledger.row(run)
        if row is None or row.head.count == 0:
            # Its process died before its first record, and so before it sent anything.
            with context.client_scopes.child(
                parent.model_door, run, parent.limits, parent=parent.run
            ) as model_door:
                model_door.run_scopes.reconcile({}, ())
            return await self.begin(parent, run, request, caller)
        records = whole_records(context.ledger, run)
        last = records[-1]
        if isinstance(last, RunEnded) and (
            last.stop not in CUT_OFF
            or limit_reached(History(records).started.limits, last.charge) is not None
        ):
            # It has ended and its parent did not learn of it; or it is at a limit. It is not driven
            # again, so its charge is counted here.
            parent.model_door.count_recorded("", charge_of_child(last.charge))
            return ended_run(context, run, records), row.head
        assert self._resuming is not None
        asked = dataclasses.replace(
            self._resuming.for_child(), watch=self._tell, decided=self._decided
        )
        with parent.deeper(caller.depth):
            ended = await resume(
                context, run, asked, children=self, around=_InsideOf(parent), parent=parent
            )
        row = context.ledger.row(run)
        assert row is not None
        return ended, row.head


class _InsideOf(Surroundings):
    """The surroundings of a child run: functions of the caller are wrapped as for its parent."""

    backend = "wasm"

    def __init__(self, parent: Parent) -> None:
        self._parent = parent

    def wrap(self, function: RunFunction) -> RunFunction:
        """Wrap as for the parent."""
        return self._parent.wrap(function)

    def deeper(self, depth: int) -> AbstractContextManager[None]:
        """Count a child of the child where its parent is counted."""
        return self._parent.deeper(depth)


def _for_children(context: RunContext) -> RunContext:
    """Return the context without the capabilities that children do not have, such as skills."""
    kept = [each for each in context.capabilities if each.for_children]
    return dataclasses.replace(context, capabilities=kept)


def _limits(parent: Parent, request: ChildRequest) -> RunLimits:
    """Return the limits of a child: at most what its parent has not spent when the child starts.

    Nothing is reserved for the child. Money that other calls hold may be given back, so it counts
    as left. Each call of the child also reserves in the scopes around it, and waits there.
    """
    before = parent.limits
    wall_ms = max(0, round((request.ends_at - time.monotonic()) * 1000))
    tokens = _unspent(parent, "tokens")
    return RunLimits(
        turns=before.turns,
        tokens=before.tokens if tokens is None else min(before.tokens, tokens),
        host_calls=before.host_calls,
        wall_ms=min(before.wall_ms, wall_ms),
        reply_tokens=before.reply_tokens,
        retries=before.retries,
        usd=_unspent(parent, "usd"),
        model_calls=_unspent(parent, "model_calls"),
        depth=before.depth,
    )


def _unspent(parent: Parent, dimension: Dimension) -> int | None:
    """Return the limit less what is spent, in the tightest scope; None without a limit.

    The shared total is not among these scopes. Reservations are not subtracted. It is never below
    0.
    """
    left = [
        limit - (getattr(row.spent, dimension) or 0)
        for row in parent.model_door.run_scopes.rows()
        if (limit := getattr(row.limit, dimension)) is not None
    ]
    return max(0, min(left)) if left else None


def _shortest(goal: str) -> tuple[Message, ...]:
    """Return the shortest first prompt that a child with this goal can have: one without data."""
    return opening(
        RunStarted(
            goal=goal,
            model="",
            limits=RunLimits(),
            grants=(),
            contexts=(),
            functions=(),
            texts=(),
            seed=0,
            clock_ns=0,
            session_id="",
            template=TEMPLATE,
            guest="",
            engine="",
            started_at=0,
        )
    )


def _inputs(context: Context) -> Sequence[Input]:
    if context is None:
        return []
    if isinstance(context, str):
        return [given_text(context)]
    return [given_text(text, name=name) for name, text in context.items()]


_: type[ChildRunner] = ChildRuns
