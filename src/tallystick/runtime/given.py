"""What a run was given, kept as attachments when it begins and read back when it is run again."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tallystick.attachments.session import Batch
from tallystick.core.attachment import AttachmentRef
from tallystick.core.errors import UsageError
from tallystick.core.records import InputRef, RunStarted, TextRef
from tallystick.runtime.inputs import Input, Layout
from tallystick.runtime.shelf import Shelf
from tallystick.sandbox.text import HostText

__all__ = ["Given", "Stored", "given_again", "given_of", "named_texts", "stored", "texts_of"]

_LABEL_CHARS_MAX = 1_000
_PIECE_BYTES = 1 << 20
_Texts = dict[str, HostText | dict[str, HostText]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The data of a run: `values` go into the guest, `texts` stay on the host."""

    values: Mapping[str, object] = field(default_factory=dict)
    texts: Mapping[str, HostText | Mapping[str, HostText]] = field(default_factory=dict)
    inputs: tuple[InputRef, ...] = ()
    refs: tuple[TextRef, ...] = ()
    images: tuple[AttachmentRef, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Inputs that are kept. Their texts are of the copies: nobody else changes those."""

    inputs: tuple[Input, ...]
    # By variable and name: a file can be in several.
    refs: Mapping[tuple[str, str], AttachmentRef]

    @property
    def encodings(self) -> tuple[tuple[str, str], ...]:
        """The files that were decoded, each with what it was in."""
        found = {each.name: each.encoding for each in self.inputs if each.encoding}
        return tuple(found.items())


def stored(inputs: Sequence[Input], shelf: Shelf) -> Stored:
    """Keep the inputs of a new run. They are committed with its first records."""
    batch = shelf.batch()
    refs: dict[tuple[str, str], AttachmentRef] = {}
    held: list[Input] = []
    for each in inputs:
        refs[each.variable, each.name], text = _kept(each, batch, shelf)
        held.append(dataclasses.replace(each, text=text, path=None))
    return Stored(inputs=tuple(held), refs=refs)


def given_of(store: Stored, layout: Layout) -> Given:
    """The data of a new run, as it is laid out."""
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
    return Given(
        values=layout.values,
        texts=layout.texts,
        inputs=tuple(
            InputRef(name=variable, key=key, attachment=refs[variable, name])
            for name, variable, key in layout.files
        ),
        refs=tuple(numbered),
        images=tuple(refs[each.variable, each.name] for each in store.inputs if each.is_picture),
    )


def given_again(started: RunStarted, shelf: Shelf) -> Given:
    """The data of a recorded run, each text checked against its digest."""
    values: dict[str, object] = dict(started.values)
    for each in started.inputs:
        text = HostText(shelf.read(each.attachment))
        _place(values, each.name, each.key, text.slice(0, text.length()))
    texts: _Texts = {}
    for ref in started.texts:
        if ref.attachment is not None:
            _place(texts, ref.name, ref.key, shelf.text(ref.attachment.id))
    return Given(
        values=values,
        texts=texts,
        inputs=started.inputs,
        refs=started.texts,
        images=started.images,
    )


def texts_of(values: Mapping[str, object]) -> tuple[str, ...]:
    """The texts that a run was given whole."""
    held = [
        each
        for value in values.values()
        for each in (value.values() if isinstance(value, Mapping) else [value])
    ]
    return tuple(each for each in held if isinstance(each, str))


def named_texts(started: RunStarted, values: Mapping[str, object]) -> dict[str, str]:
    """The texts that a run was given whole, by the names of their files."""
    held: dict[str, str] = {}
    for name, variable, key in started.files:
        value = values.get(variable)
        text = value.get(key) if isinstance(value, Mapping) else value
        if isinstance(text, str):
            held.setdefault(name, text)
    # Older runs do not say which files there were.
    older = values.get("context") if not started.files else None
    if isinstance(older, Mapping):
        held |= {name: text for name, text in older.items() if isinstance(text, str)}
    return held


def _kept(given: Input, batch: Batch, shelf: Shelf) -> tuple[AttachmentRef, HostText]:
    # A name from a directory may hold bytes that are no text.
    label = given.name.encode("utf-8", "replace").decode()[-_LABEL_CHARS_MAX:]
    declared = None if given.media_type is not None else "text/plain"
    if given.path is None:
        size = len(given.text)
        starts = range(0, size, _PIECE_BYTES)
        pieces = (given.text.read_raw(start, start + _PIECE_BYTES) for start in starts)
        return batch.add(pieces, media_type=declared, label=label), given.text
    # Read as a file: a mapped one that is cut short by somebody would end the process.
    try:
        file = given.path.open("rb")
    except OSError as error:
        raise UsageError(f"{given.path}: {error.strerror or error}") from error
    with file:
        if os.fstat(file.fileno()).st_size > _PIECE_BYTES and shelf.durable:
            ref = batch.add(file, media_type=declared, label=label)
            text = shelf.own_text(ref)
            if text is not None:
                return ref, text
            file.seek(0)
        data = file.read()
    return batch.add(data, media_type=declared, label=label), HostText(data)


def _place(held: dict[str, object] | _Texts, name: str, key: str | None, value: object) -> None:
    """Put a text under its variable, or under its key in the dictionary of that name."""
    into: dict[str, object] = held  # type: ignore[assignment]
    if key is None:
        into[name] = value
    else:
        under = into.setdefault(name, {})
        assert isinstance(under, dict)
        under[key] = value
