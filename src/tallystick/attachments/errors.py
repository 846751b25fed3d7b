"""What can go wrong with attachments, sorted as in `tallystick.core.errors`.

    BackendError
    └── AttachmentError           attachments, and not one of the kinds below
        ├── AttachmentCorrupt         the bytes or the row are not what was written
        ├── AttachmentIoFailed        the file system refused
        ├── AttachmentMetaMissing     bytes are there, and nothing is known of them
        ├── AttachmentNotFound        no such bytes, or this session does not hold them
        ├── AttachmentSourceFailed    what was to be put could not be read to its end
        ├── ManifestRecordFailed      the intent could not be written, so no bytes were
        └── ReclamationInFlight       a sweep is deleting these bytes; put them again
    Refused
    └── ReclamationRefused        a sweep that cannot know what is alive

They stand here and not in the core's file because that one is full.
"""

from __future__ import annotations

from pathlib import Path

from tallystick.core.errors import BackendError, Refused

__all__ = [
    "AttachmentCorrupt",
    "AttachmentError",
    "AttachmentIoFailed",
    "AttachmentMetaMissing",
    "AttachmentNotFound",
    "AttachmentSourceFailed",
    "ManifestRecordFailed",
    "ReclamationInFlight",
    "ReclamationRefused",
]


class AttachmentError(BackendError):
    """Attachments cannot be kept or given back."""

    code = "backend.attachment"


class AttachmentCorrupt(AttachmentError):
    """What is stored is not what was put."""

    code = "backend.attachment.corrupt"

    def __init__(self, *, id: str, why: str) -> None:
        super().__init__(f"attachment `{id}` is damaged: {why}; put the same bytes again")
        self.id = id
        self.why = why


class AttachmentIoFailed(AttachmentError):
    """The file system did not do what it was asked."""

    code = "backend.attachment.io"

    def __init__(self, *, path: str, source: str) -> None:
        super().__init__(f"attachment store I/O failed at {path}: {source}")
        self.path = path
        self.source = source

    @classmethod
    def of(cls, path: Path, error: OSError) -> AttachmentIoFailed:
        return cls(path=str(path), source=error.strerror or str(error))


class AttachmentMetaMissing(AttachmentError):
    """The bytes are there and their row is not."""

    code = "backend.attachment.meta"

    def __init__(self, *, id: str) -> None:
        super().__init__(f"attachment store metadata is unavailable for `{id}`")
        self.id = id


class AttachmentNotFound(AttachmentError):
    """There are no such bytes. To a session that does not hold them it looks the same."""

    code = "backend.attachment.not_found"

    def __init__(self, *, id: str) -> None:
        super().__init__(f"attachment `{id}` was not found")
        self.id = id


class AttachmentSourceFailed(AttachmentError):
    """The file or stream that bytes came from broke off. Nothing of it was kept."""

    code = "backend.attachment.source"

    def __init__(self, *, name: str, source: str) -> None:
        super().__init__(f"{name} could not be read to its end: {source}; nothing of it was kept")
        self.name = name
        self.source = source

    @classmethod
    def of(cls, given: object, error: OSError) -> AttachmentSourceFailed:
        name = getattr(given, "name", None)
        return cls(
            name=name if isinstance(name, str) else "the source of an attachment",
            source=error.strerror or str(error),
        )


class ManifestRecordFailed(AttachmentError):
    """The manifest could not be written."""

    code = "backend.attachment.manifest"

    def __init__(self, message: str) -> None:
        super().__init__(f"attachment manifest write failed: {message}")
        self.message = message

    @classmethod
    def of_intent(cls, id: str, error: Exception) -> ManifestRecordFailed:
        return cls(f"failed to record attachment intent for `{id}`: {error}")


class ReclamationInFlight(AttachmentError):
    """A sweep is past the point where these bytes could be kept. They can be put afterwards."""

    code = "backend.attachment.reclamation"

    def __init__(self, *, id: str) -> None:
        super().__init__(f"attachment `{id}` is being deleted by a sweep; put it again")
        self.id = id


class ReclamationRefused(Refused):
    """The sweep stopped before it deleted anything, since it cannot know what is alive.

    `report` is what was found until then.
    """

    code = "refused.reclamation"

    def __init__(self, *, why: str, report: object) -> None:
        super().__init__(f"nothing was deleted: {why}")
        self.why = why
        self.report = report
