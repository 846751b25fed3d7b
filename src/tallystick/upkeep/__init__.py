"""Work on recorded runs: read, compare, check, prove, settle, move, prune and erase them.

These names are the contract of this module; what else is in the package is internal.

- `open_stores` opens a ledger's file with what belongs to it, as `Stores`
- `records_of` yields the records of a run, and `resolve_run` finds its id from a beginning of it
- `outline_of` groups records by turns, as an `Outline`; `tree_of` returns a run and the runs inside
  it as a `Node`; `difference_of` compares two runs, and returns a `RunDifference`
- `step_lines` returns the receipt of recorded steps: a `StepLine` for each
- `verify_records` checks chains and the rows beside them, `verify_references` the attachments
- `head_of` returns a `HeadFile` to keep elsewhere, `read_head` reads one from a file, and
  `verify_head` compares it with a run: `HeadReport`
- `proof_of` returns a `Proof` of one entry, `read_proof` reads one from a file, and `verify_proof`
  checks it: `ProofReport`
- `runs_in_doubt` lists each `DoubtfulRun`, and `close_calls` settles its calls: `ClosedCalls`
- `export_run_with_attachments`, `import_run_with_attachments` and `remove_run_with_attachments`
  move and delete whole runs; `Transferred` is the result
- `read_total` and `change_total` are about the limit in dollars of a ledger's file: `Total`
- `Pruner` deletes the content of old runs: each is `Pruned`, or `Kept` with a reason
- `forget_notes` erases notes also from recorded runs, chosen by a `Which`; `Erased` is the result
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.lazy_names import lazy_names

if TYPE_CHECKING:
    from tallystick.core.proof import HeadFile, Proof
    from tallystick.core.views.difference import RunDifference, difference_of
    from tallystick.core.views.outline import Outline, outline_of
    from tallystick.core.views.receipt import StepLine, step_lines
    from tallystick.runtime.runs.history import records_of, resolve_run
    from tallystick.runtime.runs.in_doubt import (
        ClosedCalls,
        DoubtfulRun,
        close_calls,
        runs_in_doubt,
    )
    from tallystick.runtime.runs.tree import Node, tree_of
    from tallystick.stores import Stores, open_stores
    from tallystick.upkeep.audit import verify_records, verify_references
    from tallystick.upkeep.erasure import Erased, Which, forget_notes
    from tallystick.upkeep.proof import (
        HeadReport,
        ProofReport,
        head_of,
        proof_of,
        read_head,
        read_proof,
        verify_head,
        verify_proof,
    )
    from tallystick.upkeep.prune import Kept, Pruned, Pruner
    from tallystick.upkeep.total import Total, change_total, read_total
    from tallystick.upkeep.transfer import (
        Transferred,
        export_run_with_attachments,
        import_run_with_attachments,
        remove_run_with_attachments,
    )

__all__ = [
    "ClosedCalls",
    "DoubtfulRun",
    "Erased",
    "HeadFile",
    "HeadReport",
    "Kept",
    "Node",
    "Outline",
    "Proof",
    "ProofReport",
    "Pruned",
    "Pruner",
    "RunDifference",
    "StepLine",
    "Stores",
    "Total",
    "Transferred",
    "Which",
    "change_total",
    "close_calls",
    "difference_of",
    "export_run_with_attachments",
    "forget_notes",
    "head_of",
    "import_run_with_attachments",
    "open_stores",
    "outline_of",
    "proof_of",
    "read_head",
    "read_proof",
    "read_total",
    "records_of",
    "remove_run_with_attachments",
    "resolve_run",
    "runs_in_doubt",
    "step_lines",
    "tree_of",
    "verify_head",
    "verify_proof",
    "verify_records",
    "verify_references",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "tallystick.core.proof": "HeadFile Proof",
            "tallystick.core.views.difference": "RunDifference difference_of",
            "tallystick.core.views.outline": "Outline outline_of",
            "tallystick.core.views.receipt": "StepLine step_lines",
            "tallystick.runtime.runs.history": "records_of resolve_run",
            "tallystick.runtime.runs.in_doubt": "ClosedCalls DoubtfulRun close_calls runs_in_doubt",
            "tallystick.runtime.runs.tree": "Node tree_of",
            "tallystick.stores": "Stores open_stores",
            "tallystick.upkeep.audit": "verify_records verify_references",
            "tallystick.upkeep.erasure": "Erased Which forget_notes",
            "tallystick.upkeep.proof": (
                "HeadReport ProofReport head_of proof_of read_head read_proof "
                "verify_head verify_proof"
            ),
            "tallystick.upkeep.prune": "Kept Pruned Pruner",
            "tallystick.upkeep.total": "Total change_total read_total",
            "tallystick.upkeep.transfer": (
                "Transferred export_run_with_attachments import_run_with_attachments "
                "remove_run_with_attachments"
            ),
        },
    )
