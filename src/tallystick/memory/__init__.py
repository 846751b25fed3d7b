"""Memory: notes kept across runs, recalled with receipts, exported, forgotten.

`tallystick.Memory` opens a memory. These names are what its methods take and return, and the
contract of this module; what else is in the package is internal.

- `NewNote` is a note to keep: its `MemoryType`, `NoteScope` and `SourceType`; `Remembered` says
  what was done with it, and `Note` is a kept one
- `Recalled` is the result of a recall; `Filters` choose notes, a `Profile` weighs the lanes of a
  ranking, and `Seen` is one note as it stands
- `Share` is a `Permission` of another agent on a note, `Relation` one between two notes, and
  `Faded` are the notes that were put away by decay
- `list_notes` returns a `Page` of notes, `memory_stats` counts them as `MemoryStats`, and
  `check_memory` checks the log and the receipts: `Checked`
- `review_queue` lists each `Held` note, and `review` decides about one with a `Verdict`
- `Share` is a rule for whom notes are shared with, up to a `Permission`; `Relation` links two notes
- `Faded` is what a pass of decay did; `Profile` has the weights of a ranking
- `Criteria` choose notes to forget, in one way: a `ForgetStrategy`
- `export_notes` writes notes, `read_export` reads `ExportedNotes`, `import_notes` keeps them:
  `Imported`
- `MemoryKeys` sign receipts: `open_keys` reads them, `add_key` makes one

A recall program is `Recall`, `Score` and `Cite` in a row, or Python:

- `read_program` returns a `Program` from JSON; `PYTHON_FORM` names the other form
- `Budget` is what a program may use; a `Bundle` of `RecallHit` is its result, with a `TokenCount`
- `code_mode_estimate`, `json_mode_estimate` and `estimated_tokens` count tokens without a
  `Tokenizer`; `first_difference` compares two bundles
- the errors are the kinds of `CodeModeError`: `EmptyProgram`, `Halted`, `InvalidProgram`,
  `OperationFailed`, `ProgramFailed`, `SandboxViolation` and `WallTimeExceeded`

A receipt proves what a recall or a forgetting did:

- `RecallReceipt` with its `Tokens`, and `ForgetReceipt`; `NoteCitation` names a note in one;
  `Verified` and `VerifiedForget` are the results of a check, `ReceiptError` one that fails
- `receipt_file_bytes` writes a `ReceiptFile` to give away, `read_receipt_file` reads it, and
  `verify_receipt_file` checks it without a secret: `CheckedReceipt`

The errors of a memory are `NoteInvalid`, `NoteNotFound`, `NoteErased`, `MemoryPermissionDenied`,
`ImportRefused`, `BackendUnsupported`, `EmbedderNotConfigured`, `EmbeddingFailed`, `IndexFailed` and
`ModelMismatch`. `StorageFailed` has the kinds `MemoryCorrupt`, `MemoryFormatUnknown`, `MemoryFull`,
`MemoryLocked`, `MemoryReadOnly`, `MemoryUnavailable` and `NotAMemory`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.lazy_names import lazy_names

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
    from tallystick.memory.code_mode.python import ProgramFailed
    from tallystick.memory.errors import (
        BackendUnsupported,
        EmbedderNotConfigured,
        EmbeddingFailed,
        ImportRefused,
        IndexFailed,
        MemoryCorrupt,
        MemoryFormatUnknown,
        MemoryFull,
        MemoryLocked,
        MemoryPermissionDenied,
        MemoryReadOnly,
        MemoryUnavailable,
        ModelMismatch,
        NotAMemory,
        NoteErased,
        NoteInvalid,
        NoteNotFound,
        StorageFailed,
    )
    from tallystick.memory.exchange import (
        ExportedNotes,
        Imported,
        export_notes,
        import_notes,
        read_export,
    )
    from tallystick.memory.memory import Faded
    from tallystick.memory.note import (
        MemoryType,
        NewNote,
        Note,
        NoteScope,
        Permission,
        SourceType,
    )
    from tallystick.memory.recall.recall import Recalled
    from tallystick.memory.recall.scope import Profile
    from tallystick.memory.recall.selection import Filters, Seen
    from tallystick.memory.receipts.keys import MemoryKeys, add_key, open_keys
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
    from tallystick.memory.receipts.receipts import NoteCitation, Verified, VerifiedForget
    from tallystick.memory.remember import Remembered
    from tallystick.memory.report import (
        Checked,
        MemoryStats,
        Page,
        check_memory,
        list_notes,
        memory_stats,
    )
    from tallystick.memory.sharing import Relation, Share
    from tallystick.memory.store.records import Criteria, ForgetStrategy, Verdict
    from tallystick.memory.suspicion import Held, review, review_queue

__all__ = [
    "PYTHON_FORM",
    "BackendUnsupported",
    "Budget",
    "Bundle",
    "Checked",
    "CheckedReceipt",
    "Cite",
    "CodeModeError",
    "Criteria",
    "EmbedderNotConfigured",
    "EmbeddingFailed",
    "EmptyProgram",
    "ExportedNotes",
    "Faded",
    "Filters",
    "ForgetReceipt",
    "ForgetStrategy",
    "Halted",
    "Held",
    "ImportRefused",
    "Imported",
    "IndexFailed",
    "InvalidProgram",
    "MemoryCorrupt",
    "MemoryFormatUnknown",
    "MemoryFull",
    "MemoryKeys",
    "MemoryLocked",
    "MemoryPermissionDenied",
    "MemoryReadOnly",
    "MemoryStats",
    "MemoryType",
    "MemoryUnavailable",
    "ModelMismatch",
    "NewNote",
    "NotAMemory",
    "Note",
    "NoteCitation",
    "NoteErased",
    "NoteInvalid",
    "NoteNotFound",
    "NoteScope",
    "OperationFailed",
    "Page",
    "Permission",
    "Profile",
    "Program",
    "ProgramFailed",
    "Recall",
    "RecallHit",
    "RecallReceipt",
    "Recalled",
    "ReceiptError",
    "ReceiptFile",
    "Relation",
    "Remembered",
    "SandboxViolation",
    "Score",
    "Seen",
    "Share",
    "SourceType",
    "StorageFailed",
    "TokenCount",
    "Tokenizer",
    "Tokens",
    "Verdict",
    "Verified",
    "VerifiedForget",
    "WallTimeExceeded",
    "add_key",
    "check_memory",
    "code_mode_estimate",
    "estimated_tokens",
    "export_notes",
    "first_difference",
    "import_notes",
    "json_mode_estimate",
    "list_notes",
    "memory_stats",
    "open_keys",
    "read_export",
    "read_program",
    "read_receipt_file",
    "receipt_file_bytes",
    "review",
    "review_queue",
    "verify_receipt_file",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "tallystick.memory.code_mode.operations": (
                "Budget Bundle Cite CodeModeError EmptyProgram Halted InvalidProgram "
                "OperationFailed PYTHON_FORM Program Recall RecallHit SandboxViolation "
                "Score TokenCount Tokenizer WallTimeExceeded code_mode_estimate "
                "estimated_tokens first_difference json_mode_estimate read_program"
            ),
            "tallystick.memory.code_mode.python": "ProgramFailed",
            "tallystick.memory.errors": (
                "BackendUnsupported EmbedderNotConfigured EmbeddingFailed ImportRefused "
                "IndexFailed MemoryCorrupt MemoryFormatUnknown MemoryFull MemoryLocked "
                "MemoryPermissionDenied MemoryReadOnly MemoryUnavailable ModelMismatch "
                "NotAMemory NoteErased NoteInvalid NoteNotFound StorageFailed"
            ),
            "tallystick.memory.exchange": (
                "ExportedNotes Imported export_notes import_notes read_export"
            ),
            "tallystick.memory.memory": "Faded",
            "tallystick.memory.note": "MemoryType NewNote Note NoteScope Permission SourceType",
            "tallystick.memory.recall.recall": "Recalled",
            "tallystick.memory.recall.scope": "Profile",
            "tallystick.memory.recall.selection": "Filters Seen",
            "tallystick.memory.receipts.keys": "MemoryKeys add_key open_keys",
            "tallystick.memory.receipts.receipt": "ForgetReceipt RecallReceipt ReceiptError Tokens",
            "tallystick.memory.receipts.receipt_file": (
                "CheckedReceipt ReceiptFile read_receipt_file receipt_file_bytes "
                "verify_receipt_file"
            ),
            "tallystick.memory.receipts.receipts": "NoteCitation Verified VerifiedForget",
            "tallystick.memory.remember": "Remembered",
            "tallystick.memory.report": (
                "Checked MemoryStats Page check_memory list_notes memory_stats"
            ),
            "tallystick.memory.sharing": "Relation Share",
            "tallystick.memory.store.records": "Criteria ForgetStrategy Verdict",
            "tallystick.memory.suspicion": "Held review review_queue",
        },
    )
