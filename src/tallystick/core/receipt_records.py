"""Receipts: what a run did, came to and cost, in one value that can be handed out.

Its schema is ours; `harn_fields` gives the fields of `harn.receipt.v1` for those who read that.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tallystick.core.charge import Charge

__all__ = ["SCHEMA", "ModelLine", "Receipt", "ReceiptIssued", "ReceiptStatus", "harn_fields"]

SCHEMA = "tallystick.receipt.v1"
ReceiptStatus = Literal["success", "failure", "denied", "cancelled"]
_PER_DOLLAR = 10**9


class ModelLine(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of one model.

    `usd` is in nano-dollars and of the priced calls only; `unpriced` counts the others, `price`
    says which policy applied. `flags` are what was odd about settlements, each with its count.
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


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """A run, from its beginning to its end. Times are milliseconds since 1970.

    `id` is the run's session, which names the run. `parent` is the chain of the steps around it,
    `step` the path of the one that began it.
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


class ReceiptIssued(msgspec.Struct, frozen=True, kw_only=True, tag="receipt.issued"):
    """A receipt, in the transaction that ends what it is for."""

    receipt: Receipt


def harn_fields(receipt: Receipt) -> dict[str, object]:
    """The receipt under the names of `harn.receipt.v1`."""
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
        "approvals": [],
        "handoffs": [],
        "side_effects": receipt.side_effects,
        "error": None if receipt.status == "success" else f"{receipt.stop}: {receipt.detail}",
        "redaction_class": "internal",
        "metadata": {"unpriced_calls": sum(each.unpriced for each in receipt.models)},
    }
