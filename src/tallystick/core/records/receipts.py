"""Define the receipts of runs, and the records of steps: entered, and left with a receipt.

Steps are host code, so the machine of a run does not use these records. They are in a chain of
their own, one for each outermost step that a run was begun in; a run's start names that chain.

Rule: values are made fit before they are written. Figures are from zero to the largest there is,
and a text can always be encoded. The end of a step is too late to refuse its values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from tallystick.core.charge import Charge
from tallystick.core.records.given import PersonDecision
from tallystick.core.records.step_value import ValueKind

# Receipts: what a run did, its result and its cost, in one value that can be handed out.
#
# Its schema is ours; `harn_fields` gives the fields of `harn.receipt.v1` for programs that read it.


SCHEMA = "tallystick.receipt.v1"
ReceiptStatus = Literal["success", "failure", "denied", "cancelled"]
_PER_DOLLAR = 10**9


class ModelLine(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one model, in sums.

    `usd` is in nano-dollars and of the priced calls only; `unpriced` counts the others, `price`
    names the policy that applied. `flags` are what was odd about settlements, each with its count.
    """

    model: str
    calls: int = 0
    failed: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    usd: int = 0
    unpriced: int = 0
    price: str = "unknown"
    flags: tuple[tuple[str, int], ...] = ()


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A person's decision about a program or a call that waited: who decided what, and when.

    `turn` and `part` are the place of the program, `sha256` is of its source. For a call of a
    function `name`, `sha256` is of its request. `because` is the reason that was given. `at` is in
    milliseconds since 1970.
    """

    decision: PersonDecision
    by: str
    at: int
    turn: int
    part: int
    sha256: str
    name: str | msgspec.UnsetType = msgspec.UNSET
    because: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def subject(self) -> str:
        """The kind of what was decided about, and the name of a function that is called."""
        return f"call of {self.name}" if isinstance(self.name, str) else "program"


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """A run, from its beginning to its end. Times are milliseconds since 1970.

    `id` is the run's session, which names the run. `parent` is the chain of the steps around it,
    `step` the path of the one that began it. `approvals` are in their order. There are
    none in receipts of runs that were begun before version 0.2.
    """

    schema: str
    id: str
    status: ReceiptStatus
    stop: str
    detail: str
    started_at: int
    completed_at: int
    inputs_digest: str
    outputs_digest: str
    models: tuple[ModelLine, ...]
    tool_calls: tuple[tuple[str, int], ...]
    side_effects: int
    refused_calls: int
    charge: Charge
    usd_cap: int | None
    parent: str | None = None
    step: str | None = None
    # Left out where there are none, so that receipts of before are written as they were.
    approvals: tuple[Approval, ...] | msgspec.UnsetType = msgspec.UNSET


# A call with one of these flags is charged as reserved, in one figure at least.
_RESERVED_FLAGS = frozenset(
    {
        "usage_missing",
        "usage_negative",
        "usage_zero",
        "usage_impossible",
        "over_reserved",
        "unknown_outcome",
        "cancelled",
    }
)


def holds_reservations(receipt: Receipt) -> bool:
    """Return True if a receipt has a call that was charged as reserved, in one figure at least.

    The flags of its models tell. It may be that nothing was reported, or nothing that can be true.
    """
    return any(name in _RESERVED_FLAGS for line in receipt.models for name, _ in line.flags)


class ReceiptIssued(msgspec.Struct, frozen=True, kw_only=True, tag="receipt.issued"):
    """A receipt, in the transaction that ends what it is for."""

    receipt: Receipt


def harn_fields(receipt: Receipt) -> dict[str, object]:
    """Return the receipt under the names of `harn.receipt.v1`. Costs are in dollars there.

    They are of the priced calls only; `metadata` counts the others.
    """
    return {
        "schema": "harn.receipt.v1",
        "id": receipt.id,
        "parent_run_id": receipt.parent,
        "persona": receipt.models[0].model if receipt.models else "none",
        "step": receipt.step,
        "trace_id": receipt.id,
        "started_at": receipt.started_at,
        "completed_at": receipt.completed_at,
        "status": receipt.status,
        "inputs_digest": receipt.inputs_digest,
        "outputs_digest": receipt.outputs_digest,
        "model_calls": [
            {
                "name": each.model,
                "model": each.model,
                "input_tokens": each.tokens_in,
                "output_tokens": each.tokens_out,
                "cost_usd": each.usd / _PER_DOLLAR,
                "llm_calls": each.calls,
            }
            for each in receipt.models
        ],
        "tool_calls": [{"name": name, "calls": calls} for name, calls in receipt.tool_calls],
        "cost_usd": sum(each.usd for each in receipt.models) / _PER_DOLLAR,
        "approvals": [
            {
                "decision": each.decision,
                "approver": each.by,
                "at": each.at,
                "subject": f"{each.subject} {each.sha256}",
            }
            for each in (receipt.approvals or ())
        ],
        "handoffs": [],
        "side_effects": receipt.side_effects,
        "error": None if receipt.status == "success" else f"{receipt.stop}: {receipt.detail}",
        "redaction_class": "internal",
        "metadata": {"unpriced_calls": sum(each.unpriced for each in receipt.models)},
    }


# Records of steps: that one was entered, and its receipt when it was left.


STEP_SCHEMA = "tallystick.step-receipt.v1"
FIGURE_MAX = (1 << 63) - 1
# The most runs that one receipt names. It counts them all.
RUNS_NAMED_MAX = 10_000

ErrorBoundary = Literal["fail", "continue", "escalate"]
StepStatus = Literal["completed", "skipped", "escalated", "failed"]
Figure = Annotated[int, msgspec.Meta(ge=0, le=FIGURE_MAX)]


class RunNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts about a run that its own chain does not have.

    `caller` is the host call by which a program of another run began it, written before it begins.
    `told` is True if the run ended without an answer and the step was informed. It is written
    before anything that the step began afterwards. `refused` is the error that the step got
    instead, because a budget around the run is exhausted.
    """

    run: str
    caller: str = ""
    told: bool = False
    refused: Mapping[str, object] | None = None


class StepEntered(msgspec.Struct, frozen=True, kw_only=True, tag="step.entered"):
    """A step was entered. On the ledger before a run inside it is begun, else with its receipt.

    `path` names the step: the steps around it, its function, and its occurrence. The limits are
    those that it declares, money in nano-dollars. `entered_at` is in milliseconds since 1970.
    `missed` is for the first record of a chain: how many steps were left before it and are not in
    it. `arguments_sha256` is of its arguments, "" if they have no canonical form. `caller` is the
    host call by which a program reached it, if one did.

    The record is repeated if the step was entered again when the chain was resumed, with other
    arguments or after it had been left. It is also repeated while the step is open, with a `note`
    of a run inside.
    """

    path: str
    name: str
    function: str
    key: str
    model: str | None
    tokens_max: Figure | None
    usd_max: Figure | None
    error_boundary: ErrorBoundary
    entered_at: Figure
    missed: Figure = 0
    arguments_sha256: str = ""
    caller: str = ""
    note: RunNote | None = None


class StepReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """A step, from its beginning to its end, with everything inside it.

    `chain` and `path` name it. `model` is the last that was asked, else the declared one. `usd` is
    in nano-dollars and of the priced calls only; `unpriced` counts the others. `runs` are those
    begun directly in it, at most the first 10,000; `runs_begun` counts them all. `unfinished` is
    how many runs and inner steps were still in progress when it was left. What they used afterwards
    is in their own receipts, and in no figure of this one.
    """

    schema: str
    chain: str
    path: str
    name: str
    function: str
    model: str | None
    input_tokens: Figure
    output_tokens: Figure
    usd: Figure
    unpriced: Figure
    llm_calls: Figure
    status: StepStatus
    error: str | None
    started_at: Figure
    completed_at: Figure
    runs: tuple[str, ...]
    runs_begun: Figure
    unfinished: Figure


class StepLeft(msgspec.Struct, frozen=True, kw_only=True, tag="step.left"):
    """A step was left, with or without an error.

    A step without such a record is open, or was cut off.

    Of a completed step, `value` is its result, if that can be read back exactly; `value_kind` names
    its encoding. `notes` are those of its runs that were not written before. The last such record
    counts: a step that ran again may have used more.
    """

    receipt: StepReceipt
    value: str = ""
    value_kind: ValueKind = ""
    notes: tuple[RunNote, ...] = ()


def figure(value: int) -> int:
    """Return a count or a sum as records hold it: from zero to `FIGURE_MAX`, the nearest one."""
    return min(max(0, value), FIGURE_MAX)


def encodable(text: str, *, chars_max: int | None = None) -> str:
    """Return a text as records hold it: characters that UTF-8 cannot encode become escapes.

    A text longer than `chars_max` is cut, with "..." at its end, before that.
    """
    if chars_max is not None and len(text) > chars_max:
        text = f"{text[: chars_max - 3]}..."
    return text.encode("utf-8", "backslashreplace").decode()
