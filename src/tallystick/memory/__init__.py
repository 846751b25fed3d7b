"""Notes kept across runs: remembered, recalled with receipts, exported, forgotten.

`tallystick.Memory` opens a memory. The names below are what its methods take and return: recall
programs with their bundle, token counts and errors; receipts, and how somebody else checks one.
They are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tallystick.memory.code_mode.operations import (
        PYTHON_FORM,
        Budget,
        Bundle,
        Cite,
        CodeModeError,
        EmptyProgram,
        Halted,
        InvalidProgram,
        OperationFailed,
        Program,
        Recall,
        RecallHit,
        SandboxViolation,
        Score,
        TokenCount,
        Tokenizer,
        WallTimeExceeded,
        code_mode_estimate,
        estimated_tokens,
        first_difference,
        json_mode_estimate,
        read_program,
    )
    from tallystick.memory.code_mode.python import (
        ProgramFailed,
    )
    from tallystick.memory.receipts.receipt import (
        ForgetReceipt,
        RecallReceipt,
        ReceiptError,
        Tokens,
    )
    from tallystick.memory.receipts.receipt_file import (
        CheckedReceipt,
        ReceiptFile,
        read_receipt_file,
        receipt_file_bytes,
        verify_receipt_file,
    )
    from tallystick.memory.receipts.receipts import (
        NoteCitation,
        Verified,
        VerifiedForget,
    )

__all__ = [
    "PYTHON_FORM",
    "Budget",
    "Bundle",
    "CheckedReceipt",
    "Cite",
    "CodeModeError",
    "EmptyProgram",
    "ForgetReceipt",
    "Halted",
    "InvalidProgram",
    "NoteCitation",
    "OperationFailed",
    "Program",
    "ProgramFailed",
    "Recall",
    "RecallHit",
    "RecallReceipt",
    "ReceiptError",
    "ReceiptFile",
    "SandboxViolation",
    "Score",
    "TokenCount",
    "Tokenizer",
    "Tokens",
    "Verified",
    "VerifiedForget",
    "WallTimeExceeded",
    "code_mode_estimate",
    "estimated_tokens",
    "first_difference",
    "json_mode_estimate",
    "read_program",
    "read_receipt_file",
    "receipt_file_bytes",
    "verify_receipt_file",
]

_HOMES = {
    "tallystick.memory.code_mode.operations": (
        "Budget",
        "Bundle",
        "Cite",
        "CodeModeError",
        "EmptyProgram",
        "Halted",
        "InvalidProgram",
        "OperationFailed",
        "PYTHON_FORM",
        "Program",
        "Recall",
        "RecallHit",
        "SandboxViolation",
        "Score",
        "TokenCount",
        "Tokenizer",
        "WallTimeExceeded",
        "code_mode_estimate",
        "estimated_tokens",
        "first_difference",
        "json_mode_estimate",
        "read_program",
    ),
    "tallystick.memory.code_mode.python": ("ProgramFailed",),
    "tallystick.memory.receipts.receipt": (
        "ForgetReceipt",
        "RecallReceipt",
        "ReceiptError",
        "Tokens",
    ),
    "tallystick.memory.receipts.receipt_file": (
        "CheckedReceipt",
        "ReceiptFile",
        "read_receipt_file",
        "receipt_file_bytes",
        "verify_receipt_file",
    ),
    "tallystick.memory.receipts.receipts": (
        "NoteCitation",
        "Verified",
        "VerifiedForget",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'tallystick.memory' has no attribute {name!r}")
    found: object = getattr(importlib.import_module(_HOME_OF[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
