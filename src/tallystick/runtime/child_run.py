"""Child runs: begun under what their parent has left, or gone on with after a crash."""

from __future__ import annotations

from collections.abc import Sequence

from tallystick.core.caps import charge_of_child
from tallystick.core.chain import Head
from tallystick.core.records import Caller, RunEnded, RunLimits
from tallystick.ledger.port import find_row
from tallystick.model.port import Heard
from tallystick.runtime.child_desk import ChildRunner, Parent
from tallystick.runtime.child_slots import ChildSlots
from tallystick.runtime.children import ChildRequest, Context
from tallystick.runtime.history import whole_records
from tallystick.runtime.inputs import Input, given_text
from tallystick.runtime.live_run import RunJob, Watch, run_live
from tallystick.runtime.resume import Parts, ResumeJob, ended_run, resumed
from tallystick.runtime.run import Run
from tallystick.runtime.run_lock import held_run
from tallystick.runtime.so_far import holder_of
from tallystick.runtime.step_run import RunSteps
from tallystick.sandbox.identity import new_id

__all__ = ["Family"]

# Ends from outside: whoever goes on with the parent goes on with the child.
_CUT_OFF = frozenset({"cancelled", "in_doubt", "sandbox_error"})


class Family:
    """The runs below one root: they share its session, its watcher and its places."""

    def __init__(
        self, parts: Parts, *, watch: Watch, heard: Heard, resuming: ResumeJob | None = None
    ) -> None:
        self._parts = parts
        self._watch = watch
        self._heard = heard
        self._resuming = resuming
        self._slots = ChildSlots()

    @property
    def slots(self) -> ChildSlots:
        return self._slots

    async def begin(
        self, parent: Parent, run: str, request: ChildRequest, caller: Caller, *, wall_ms: int
    ) -> tuple[Run, Head]:
        parts = self._parts
        limits = _limits(parent, wall_ms)
        session_id = new_id()
        find_model = parts.find_model(parent.model)
        job = RunJob(
            goal=request.prompt,
            inputs=_inputs(request.context),
            limits=limits,
            grants=parent.grants,
            seed=parent.seed,
            temperature=parent.temperature,
            watch=self._watch,
            heard=self._heard,
        )
        with (
            held_run(parts.ledger, run),
            parts.till.child(parent.teller, run, limits, parent=parent.run) as teller,
        ):
            return await run_live(
                job,
                run=run,
                session_id=session_id,
                model=find_model(request.model),
                sandbox=parts.sandbox(),
                ledger=parts.ledger,
                functions=parent.functions,
                shelf=parts.shelf(session_id, parent.grants),
                teller=teller,
                find_model=find_model,
                steps=RunSteps(None),
                children=self,
                caller=caller,
            )

    async def resume(
        self, parent: Parent, run: str, request: ChildRequest, caller: Caller, *, wall_ms: int
    ) -> tuple[Run, Head]:
        parts = self._parts
        row = find_row(parts.ledger, run)
        if row is None or row.head.count == 0:
            # Its process died before anything of it was written.
            return await self.begin(parent, run, request, caller, wall_ms=wall_ms)
        records = whole_records(parts.ledger, run)
        last = records[-1]
        if isinstance(last, RunEnded) and last.stop not in _CUT_OFF:
            # It had ended, and its parent was not told.
            shelf = parts.shelf(holder_of(records), parent.grants)
            parent.teller.recalled("", charge_of_child(last.charge))
            return ended_run(run, records, ledger=parts.ledger, shelf=shelf), row.head
        assert self._resuming is not None
        ended = await resumed(
            parts, run, self._resuming.for_child(), RunSteps(None), children=self, parent=parent
        )
        row = find_row(parts.ledger, run)
        assert row is not None
        return ended, row.head


def _limits(parent: Parent, wall_ms: int) -> RunLimits:
    """At most what the parent has left when the child begins. Nothing moves."""
    left = parent.teller.purse.remaining()
    before = parent.limits
    tokens = before.tokens if left.tokens is None else min(before.tokens, max(0, left.tokens))
    return RunLimits(
        turns=before.turns,
        tokens=tokens,
        host_calls=before.host_calls,
        wall_ms=min(before.wall_ms, wall_ms),
        reply_tokens=before.reply_tokens,
        retries=before.retries,
        usd=None if left.usd is None else max(0, left.usd),
        model_calls=None if left.model_calls is None else max(0, left.model_calls),
        depth=before.depth,
    )


def _inputs(context: Context) -> Sequence[Input]:
    if context is None:
        return []
    if isinstance(context, str):
        return [given_text(context)]
    return [given_text(text, name=name) for name, text in context.items()]


_: type[ChildRunner] = Family
