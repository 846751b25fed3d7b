"""Attachments: bytes stored once under their digest, until no holder keeps them.

These names are the contract of this module; what else is in the package is internal.

- `SessionAttachments` puts, reads, lists and deletes what one holder keeps; each is a `Reference`
- `Attachments` is the port of stores: that of a ledger is `Session.attachments`, and
  `MemoryAttachments` is one for tests
- `Manifest` is the port of the rows beside the bytes, with each `Intent` to hold some; `NoManifest`
  keeps none
- `Persistence` and `DurabilityTier` say how long a store keeps what it holds
- `AttachmentRef` names the bytes in records: id, media type, length, label
- `reclaim` deletes what no holder keeps, by a `ReclaimPolicy`, and returns a `ReclaimReport`
- `verify_attachments` reads everything that is held again, and returns a `VerifyReport`
- the errors are `AttachmentError` and its kinds: `AttachmentCorrupt`, `AttachmentIoFailed`,
  `AttachmentMetaMissing`, `AttachmentNotFound`, `AttachmentSourceFailed`, `ManifestRecordFailed`;
  and `AttachmentTooLong`, `EmptyRootSet`, `ReclamationInFlight` and `ReclamationRefused`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.lazy_names import lazy_names

if TYPE_CHECKING:
    from tallystick.attachments.collect import (
        EmptyRootSet,
        ReclaimPolicy,
        ReclaimReport,
        VerifyReport,
        reclaim,
        verify_attachments,
    )
    from tallystick.attachments.memory import MemoryAttachments, NoManifest
    from tallystick.attachments.port import (
        AttachmentCorrupt,
        AttachmentError,
        AttachmentIoFailed,
        AttachmentMetaMissing,
        AttachmentNotFound,
        Attachments,
        AttachmentSourceFailed,
        AttachmentTooLong,
        DurabilityTier,
        Intent,
        Manifest,
        ManifestRecordFailed,
        Persistence,
        ReclamationInFlight,
        ReclamationRefused,
        Reference,
    )
    from tallystick.attachments.session import SessionAttachments
    from tallystick.core.records import AttachmentRef

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
    "DurabilityTier",
    "EmptyRootSet",
    "Intent",
    "Manifest",
    "ManifestRecordFailed",
    "MemoryAttachments",
    "NoManifest",
    "Persistence",
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

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "tallystick.attachments.collect": (
                "EmptyRootSet ReclaimPolicy ReclaimReport VerifyReport reclaim verify_attachments"
            ),
            "tallystick.attachments.memory": "MemoryAttachments NoManifest",
            "tallystick.attachments.port": (
                "AttachmentCorrupt AttachmentError AttachmentIoFailed "
                "AttachmentMetaMissing AttachmentNotFound AttachmentSourceFailed "
                "AttachmentTooLong Attachments DurabilityTier Intent Manifest "
                "ManifestRecordFailed Persistence ReclamationInFlight "
                "ReclamationRefused Reference"
            ),
            "tallystick.attachments.session": "SessionAttachments",
            "tallystick.core.records": "AttachmentRef",
        },
    )
