"""Keep attachments: bytes stored once under their digest, until no holder keeps them.

These names are the contract of this module; what else is in the package is internal.

- `SessionAttachments(store, session_id=...)` puts, reads, lists and deletes what one holder keeps;
  the store of a ledger is `Session.attachments`, and `MemoryAttachments` is one for tests
- `AttachmentRef` names the bytes in records: id, media type, length, label
- `reclaim` deletes what no holder keeps, by a `ReclaimPolicy`, and returns a `ReclaimReport`
- `verify_attachments` reads everything that is held again, and returns a `VerifyReport`
- the errors are `AttachmentError` and its kinds, `AttachmentTooLong` and `ReclamationRefused`
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tallystick.attachments.collect import (
        EmptyRootSet,
        ReclaimPolicy,
        ReclaimReport,
        VerifyReport,
        reclaim,
        verify_attachments,
    )
    from tallystick.attachments.memory import MemoryAttachments
    from tallystick.attachments.port import (
        AttachmentCorrupt,
        AttachmentError,
        AttachmentIoFailed,
        AttachmentMetaMissing,
        AttachmentNotFound,
        Attachments,
        AttachmentSourceFailed,
        AttachmentTooLong,
        ManifestRecordFailed,
        ReclamationInFlight,
        ReclamationRefused,
        Reference,
    )
    from tallystick.attachments.session import SessionAttachments
    from tallystick.core.records import AttachmentRef

# Where each name is. A command that needs no attachments imports none of these modules.
_MODULES = {
    "tallystick.attachments.collect": (
        *("EmptyRootSet", "ReclaimPolicy", "ReclaimReport", "VerifyReport", "reclaim"),
        "verify_attachments",
    ),
    "tallystick.attachments.memory": ("MemoryAttachments",),
    "tallystick.attachments.port": (
        *("AttachmentCorrupt", "AttachmentError", "AttachmentIoFailed", "AttachmentMetaMissing"),
        *("AttachmentNotFound", "AttachmentSourceFailed", "AttachmentTooLong", "Attachments"),
        *("ManifestRecordFailed", "ReclamationInFlight", "ReclamationRefused", "Reference"),
    ),
    "tallystick.attachments.session": ("SessionAttachments",),
    "tallystick.core.records": ("AttachmentRef",),
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AttachmentCorrupt",
    "AttachmentError",
    "AttachmentIoFailed",
    "AttachmentMetaMissing",
    "AttachmentNotFound",
    "AttachmentRef",
    "AttachmentSourceFailed",
    "AttachmentTooLong",
    "Attachments",
    "EmptyRootSet",
    "ManifestRecordFailed",
    "MemoryAttachments",
    "ReclaimPolicy",
    "ReclaimReport",
    "ReclamationInFlight",
    "ReclamationRefused",
    "Reference",
    "SessionAttachments",
    "VerifyReport",
    "reclaim",
    "verify_attachments",
]


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'tallystick.attachments' has no attribute {name!r}")
    found: object = getattr(importlib.import_module(_WHERE[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
