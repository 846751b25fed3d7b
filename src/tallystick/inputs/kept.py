"""Store the inputs of a run as attachments, read them back, and check an answer against them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tallystick.attachments.port import AttachmentError
from tallystick.attachments.session import Batch
from tallystick.core.citation.cited import Cited, check_answer
from tallystick.core.citation.claims import Documents
from tallystick.core.errors import LedgerError, UsageError
from tallystick.core.records import AttachmentRef, InputRef, RunEnded, RunStarted, TextRef
from tallystick.inputs.layout import InputLayout
from tallystick.runtime.calls.capability import RunData
from tallystick.runtime.context.attachments import RunAttachments
from tallystick.runtime.context.inputs import Input
from tallystick.sandbox.text import HostText

_LABEL_CHARS_MAX = 1_000
_PIECE_BYTES = 1 << 20
_Texts = dict[str, HostText | dict[str, HostText]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredInputs:
    """Inputs that were stored. Their texts are read from the copies, which no one else changes."""

    inputs: tuple[Input, ...]
    # By variable and name: a file can be in several variables.
    refs: Mapping[tuple[str, str], AttachmentRef]

    @property
    def encodings(self) -> tuple[tuple[str, str], ...]:
        """The names of the files that were decoded, each with its encoding, once per name."""
        found = {each.name: each.encoding for each in self.inputs if each.encoding}
        return tuple(found.items())


def store_inputs(inputs: Sequence[Input], run_attachments: RunAttachments) -> StoredInputs:
    """Store the inputs of a new run. They are committed with its first records.

    Raise `UsageError` if a file cannot be opened, and the errors of the store of attachments.
    """
    batch = run_attachments.batch()
    refs: dict[tuple[str, str], AttachmentRef] = {}
    held: list[Input] = []
    for each in inputs:
        refs[each.variable, each.name], text = _store_input(each, batch, run_attachments)
        held.append(dataclasses.replace(each, text=text, path=None))
    return StoredInputs(inputs=tuple(held), refs=refs)


def input_fields(store: StoredInputs, layout: InputLayout) -> dict[str, Any]:
    """Return the fields that the start of a new run records of its inputs.

    Each text, picture and text on the host is recorded by its reference. `layout` must be that of
    `store.inputs`.
    """
    refs = store.refs
    only = {each.variable: each.name for each in store.inputs if not each.is_picture}
    numbered: list[TextRef] = []
    for variable, held in layout.texts.items():
        names = [None] if isinstance(held, HostText) else list(held)
        for key in names:
            ref = refs[variable, only[variable] if key is None else key]
            numbered.append(
                TextRef(
                    name=variable, key=key, id=len(numbered), bytes=ref.byte_len, attachment=ref
                )
            )
    return {
        "contexts": layout.contexts,
        "texts": tuple(numbered),
        "views": layout.views,
        "files": layout.files,
        "inputs": tuple(
            InputRef(name=variable, key=key, attachment=refs[variable, name])
            for name, variable, key in layout.files
        ),
        "images": tuple(refs[each.variable, each.name] for each in store.inputs if each.is_picture),
        "encodings": store.encodings,
    }


def recorded_data(started: RunStarted, run_attachments: RunAttachments) -> RunData:
    """Return the data of a recorded run. Each text that is read is checked against its digest.

    All of them are read here once, so this takes a while for long ones. Raise `AttachmentNotFound`
    or `AttachmentCorrupt` if one is gone or damaged.
    """
    values: dict[str, object] = dict(started.values)
    for each in started.inputs:
        text = HostText(run_attachments.read(each.attachment))
        _place(values, each.name, each.key, text.slice(0, text.length()))
    texts: _Texts = {}
    for ref in started.texts:
        if ref.attachment is not None:
            _place(texts, ref.name, ref.key, run_attachments.text(ref.attachment.id))
    return RunData(values=values, texts=texts)


def named_texts(started: RunStarted, values: Mapping[str, object]) -> dict[str, str]:
    """Return the texts of a run that are whole in `values`, by the names of their files.

    Of two files with one name, the first counts. For the oldest runs, which list no files, these
    are the entries of the dictionary `context`.
    """
    held: dict[str, str] = {}
    for name, variable, key in started.files:
        value = values.get(variable)
        text = value.get(key) if isinstance(value, Mapping) else value
        if isinstance(text, str):
            held.setdefault(name, text)
    # The records of older runs have no list of files.
    older = values.get("context") if not started.files else None
    if isinstance(older, Mapping):
        held |= {name: text for name, text in older.items() if isinstance(text, str)}
    return held


def _store_input(
    given: Input, batch: Batch, run_attachments: RunAttachments
) -> tuple[AttachmentRef, HostText]:
    # A file name may hold bytes that are not UTF-8.
    label = given.name.encode("utf-8", "replace").decode()[-_LABEL_CHARS_MAX:]
    declared = None if given.media_type is not None else "text/plain"
    if given.path is None:
        size = len(given.text)
        starts = range(0, size, _PIECE_BYTES)
        pieces = (given.text.read_raw(start, start + _PIECE_BYTES) for start in starts)
        return batch.add(pieces, media_type=declared, label=label), given.text
    # Do not map the file: if another process truncates a mapped file, ours is killed (SIGBUS).
    try:
        file = given.path.open("rb")
    except OSError as error:
        raise UsageError(f"{given.path}: {error.strerror or error}") from error
    with file:
        # A long file is copied in pieces, and its text then reads the copy, which never changes.
        if os.fstat(file.fileno()).st_size > _PIECE_BYTES and run_attachments.durable:
            ref = batch.add(file, media_type=declared, label=label)
            text = run_attachments.own_text(ref)
            if text is not None:
                return ref, text
            file.seek(0)
        data = file.read()
    return batch.add(data, media_type=declared, label=label), HostText(data)


def _place(held: dict[str, object] | _Texts, name: str, key: str | None, value: object) -> None:
    """Put a text into `held` under its variable, or under its key in the dictionary there."""
    into: dict[str, object] = held  # type: ignore[assignment]
    if key is None:
        into[name] = value
    else:
        under = into.setdefault(name, {})
        assert isinstance(under, dict)
        under[key] = value


def cite_answer(
    ended: RunEnded | None, started: RunStarted, data: RunData, run_attachments: RunAttachments
) -> Cited:
    """Return where the answer is in the inputs of the run, and the claims that do not check.

    The result follows from the record and the stored bytes alone, so it is the same each time. It
    is empty for a run without an answer, and if the stored bytes are gone or damaged. Of a run that
    did not end with its answer, claims are not checked.
    """
    if ended is None or ended.answer is None:
        return Cited()
    answered = ended.stop == "answered"
    try:
        return check_answer(
            ended.answer,
            question=started.goal,
            documents=Documents(_documents(started, data, run_attachments)),
            claimed=answered,
            typed=answered and started.schema is not None,
        )
    except (AttachmentError, LedgerError):
        return Cited()  # The copies are gone, so nothing can be checked. The answer stays valid.


def _documents(
    started: RunStarted, data: RunData, run_attachments: RunAttachments
) -> dict[str, HostText]:
    """Return the documents by name. Texts that were in the guest are read from their copies.

    A second one of the same name is `VARIABLE=NAME`. Raise what `RunAttachments.read` raises.
    """
    # The oldest runs have no attachments: their texts are in their first record.
    older = named_texts(started, started.values)
    found = {name: HostText(text.encode("utf-8", "surrogatepass")) for name, text in older.items()}
    names = {(variable, key): name for name, variable, key in started.files}

    def hold(ref: InputRef | TextRef, text: HostText) -> None:
        label = None if ref.attachment is None else ref.attachment.label
        name = names.get((ref.name, ref.key)) or ref.key or label or ref.name
        # The same file may be in two variables.
        found[name if name not in found else f"{ref.name}={name}"] = text

    for each in started.inputs:
        hold(each, HostText(run_attachments.read(each.attachment)))
    for ref in started.texts:
        held = data.texts.get(ref.name)
        text = held if isinstance(held, HostText) or held is None else held.get(ref.key or "")
        if text is not None:
            hold(ref, text)
    return found
