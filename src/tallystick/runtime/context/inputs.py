"""What a run is given: files and texts laid out, kept as attachments, read back, and cited.

What is given without a name is `context`; `NAME=FILE` makes a variable of that name beside it. One
text is the variable itself, several are a dictionary of texts under their file names. Up to 4 MB in
all they are real `str`; beyond that the largest variables stay on the host. Texts are UTF-8 from
here on, whatever their files were in. Pictures are not for programs: the model sees them beside the
task. Nothing outside what was named is read: links that lead out of a directory are refused.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tallystick.attachments.port import AttachmentError
from tallystick.attachments.session import Batch
from tallystick.core.citation.cited import Cited, cited_in
from tallystick.core.citation.claims import Documents
from tallystick.core.errors import LedgerError, UsageError
from tallystick.core.records import (
    AttachmentRef,
    ContextRef,
    InputRef,
    RunEnded,
    RunStarted,
    TextRef,
    ViewRef,
)
from tallystick.runtime.context.attachments import RunAttachments
from tallystick.runtime.context.description import (
    FILES_SHOWN,
    Placed,
    asking_over,
    files_shown,
    program_over,
    told_in_short,
    told_of,
    told_of_corpus,
    told_of_long,
    told_of_names,
)
from tallystick.runtime.context.files import (
    DAMAGED,
    PICTURES,
    UTF_8,
    Opened,
    expanded,
    is_there,
    opened,
    opened_bytes,
)
from tallystick.runtime.context.namespace import CONTEXT, check_variables
from tallystick.runtime.context.shapes import shape_of
from tallystick.sandbox.text import HostText

STR_BYTES_MAX = 4_000_000
_FILES_MAX = 10_000
_HASH_BYTES = 1024 * 1024
_STDIN = "-"
_TOLD_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One text, or picture, and the name it came under. A text has no `media_type`.

    A long one has a `path`: its text is that file, which others may change. `variable` is where
    programs find it, `encoding` what its file was in, if that is not UTF-8.
    """

    name: str
    text: HostText
    media_type: str | None = None
    path: Path | None = None
    variable: str = CONTEXT
    encoding: str = UTF_8

    @property
    def is_picture(self) -> bool:
        return self.media_type in PICTURES


def given_text(text: str, *, name: str | None = None, variable: str = CONTEXT) -> Input:
    """A text that is there already, for programs in `variable`.

    Several in one variable are a dictionary there, each under its `name`.
    """
    check_variables([variable])
    called = variable if name is None else name
    return Input(name=called, text=HostText.of(text), variable=variable)


def wants_stdin(named: Sequence[str]) -> bool:
    """Whether standard input is among what was named."""
    return any(_split(each)[1] == _STDIN for each in named)


def read_inputs(named: Sequence[str], *, stdin: bytes | None = None) -> list[Input]:
    """Open everything that was named, each `FILE`, `NAME=FILE` or `-` for standard input.

    For FILE there can be a directory or a pattern. The same file is taken once in a variable. What
    is not UTF-8 is decoded. Raises `UsageError` for what cannot be read, and if all of it is empty.
    """
    inputs: list[Input] = []
    seen: set[tuple[str, str]] = set()
    for each in named:
        variable, what = _split(each)
        if what == _STDIN:
            if (variable, _STDIN) not in seen:
                seen.add((variable, _STDIN))
                inputs.append(_input("stdin", variable, opened_bytes(stdin or b"", name="stdin")))
            continue
        for path in expanded(what):
            real = os.path.realpath(path)
            if (variable, real) not in seen:
                seen.add((variable, real))
                inputs.append(_input(str(path), variable, opened(path)))
        if len(inputs) > _FILES_MAX:
            raise UsageError(f"{each}: more than {_FILES_MAX:,} files")
    _check_texts(inputs)
    return inputs


def encodings_told(inputs: Sequence[Input]) -> list[str]:
    """A line for each text that was not UTF-8; a single one if they are many."""
    found = [each for each in inputs if each.encoding not in (UTF_8, "utf-8-sig")]
    if len(found) > _TOLD_MAX:
        kinds = Counter(each.encoding for each in found).most_common()
        listed = ", ".join(f"{count:,} {encoding}" for encoding, count in kinds)
        return [f"{len(found):,} files are not UTF-8 and were decoded: {listed}"]
    return [
        f"{each.name}: has bytes that are not UTF-8; they are read as U+FFFD"
        if each.encoding == DAMAGED
        else f"{each.name}: not UTF-8; read as {each.encoding}"
        for each in found
    ]


def _split(named: str) -> tuple[str, str]:
    """The variable and what goes into it. What exists under the whole name has no variable."""
    name, equals, what = named.partition("=")
    if not equals or is_there(named):
        return CONTEXT, named
    if not name.isidentifier() and not is_there(what):
        # Then it is no name at all, but a part of a path.
        return CONTEXT, named
    check_variables([name])
    if not what:
        raise UsageError(f"-f {name}=: an empty name; a variable in it may not be set")
    return name, what


def _input(name: str, variable: str, found: Opened) -> Input:
    return Input(
        name=name,
        text=found.text,
        media_type=found.media_type,
        path=found.path,
        variable=variable,
        encoding=found.encoding,
    )


def _check_texts(inputs: Sequence[Input]) -> None:
    """Refuse what holds nothing, and variables that would not be there."""
    check_variables(each.variable for each in inputs)
    with_text = {CONTEXT, *(each.variable for each in inputs if not each.is_picture)}
    for each in inputs:
        if each.variable not in with_text:
            raise UsageError(
                f"{each.name}: a picture, which is in no variable; leave `{each.variable}=` away"
            )
    if inputs and not any(len(each.text) for each in inputs):
        if len(inputs) == 1:
            raise UsageError(f"{inputs[0].name}: empty; there is nothing to read in it")
        raise UsageError(f"all {len(inputs):,} files are empty; there is nothing to read in them")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLayout:
    """How the inputs of a run lie in its programs' namespace, and what the model is told of them.

    Variables of up to 4 MB in all are `values`, with views of what they are made of; others are
    `texts`.
    """

    contexts: tuple[ContextRef, ...] = ()
    # The same for a run whose programs are to ask models, where that makes a difference.
    asking: tuple[ContextRef, ...] = ()
    values: dict[str, object] = field(default_factory=dict)
    texts: dict[str, HostText | dict[str, HostText]] = field(default_factory=dict)
    views: tuple[ViewRef, ...] = ()
    files: tuple[tuple[str, str, str | None], ...] = ()


def layout_of(inputs: Sequence[Input], *, question: str = "") -> InputLayout:
    """Lay out the inputs: one in a variable is that itself, several are a dictionary by name.

    What the model is told of them depends a little on the question.
    """
    variables = _by_variable(inputs)
    if not variables:
        return InputLayout()
    on_host = _on_host(variables)
    laid = _Laying(alone=len(variables) == 1, question=question)
    for place, (variable, held) in enumerate(variables.items()):
        # Each variable has its share of what is told, as far as that goes.
        shown = max(1, FILES_SHOWN // len(variables)) if place < FILES_SHOWN else 0
        if variable in on_host:
            laid.on_host(variable, held, shown=shown)
        else:
            laid.in_guest(variable, held, shown=shown)
    return laid.layout()


def _by_variable(inputs: Sequence[Input]) -> dict[str, list[Input]]:
    found: dict[str, list[Input]] = {}
    for each in inputs:
        if not each.is_picture:
            found.setdefault(each.variable, []).append(each)
    for variable, held in found.items():
        name, count = Counter(each.name for each in held).most_common(1)[0]
        if count > 1:
            raise UsageError(f"{count} texts in `{variable}` are called {name!r}; name each")
    return found


def _on_host(variables: dict[str, list[Input]]) -> frozenset[str]:
    """The variables that stay on the host: the largest, until the others fit into the guest."""
    sizes = {name: sum(len(each.text) for each in held) for name, held in variables.items()}
    left = sum(sizes.values())
    found: set[str] = set()
    for name in sorted(sizes, key=lambda name: sizes[name], reverse=True):
        if left <= STR_BYTES_MAX:
            break
        found.add(name)
        left -= sizes[name]
    return frozenset(found)


class _Laying:
    """A layout in the making, one variable after the other."""

    def __init__(self, *, alone: bool, question: str) -> None:
        self._alone = alone
        self._question = question
        self._contexts: list[ContextRef] = []
        self._values: dict[str, object] = {}
        self._texts: dict[str, HostText | dict[str, HostText]] = {}
        self._views: list[ViewRef] = []
        self._files: list[tuple[str, str, str | None]] = []
        self._placed: list[Placed] = []

    def in_guest(self, variable: str, held: Sequence[Input], *, shown: int) -> None:
        single, count = len(held) == 1, len(held)
        told = _headed(variable, held)
        shown = files_shown(count, at_most=shown)
        whole = {each.name: each.text.slice(0, each.text.length()) for each in held}
        all_shown = single
        for place, (name, text) in enumerate(whole.items()):
            key = None if single else name
            shape = shape_of(text)
            self._views.extend(shape.views(of=variable, key=key))
            self._files.append((name, variable, key))
            self._placed.append((variable, key, shape))
            if place < shown:
                said, in_full = told_of(
                    text,
                    shape,
                    of=variable,
                    key=key,
                    alone=self._alone and single,
                    count=count,
                    question=self._question,
                )
                told.append(said)
                all_shown = all_shown and in_full
            elif single:
                told.append(told_in_short(shape, of=variable, key=key))
                all_shown = False
        self._values[variable] = whole[held[0].name] if single else whole
        self._contexts.append(_ref(variable, held, told, whole=all_shown))

    def on_host(self, variable: str, held: Sequence[Input], *, shown: int) -> None:
        single, count = len(held) == 1, len(held)
        told = _headed(variable, held)
        if not single:
            told[0] = f"{told[0]} {told_of_corpus(variable)}"
        for each in held[: files_shown(count, at_most=shown)]:
            key = None if single else each.name
            told.append(told_of_long(each.text, of=variable, key=key, count=count))
        if single and not shown:
            told.append(told_in_short(None, of=variable, key=None))
        texts = {each.name: each.text for each in held}
        self._texts[variable] = held[0].text if single else texts
        self._contexts.append(_ref(variable, held, told))

    def layout(self) -> InputLayout:
        program = program_over(self._placed) if self._placed else None
        asking = asking_over(self._placed, question=self._question)
        return InputLayout(
            contexts=self._shown(program),
            asking=() if asking is None else self._shown(asking),
            values=self._values,
            texts=self._texts,
            views=tuple(self._views),
            files=tuple(self._files),
        )

    def _shown(self, program: str | None) -> tuple[ContextRef, ...]:
        """What is told of the variables, with a program at the end."""
        if program is None:
            return tuple(self._contexts)
        *others, last = self._contexts
        said = f"A block can begin like this:\n```python\n{program}\n```"
        return (*others, msgspec.structs.replace(last, sample=f"{last.sample}\n\n{said}"))


def _headed(variable: str, held: Sequence[Input]) -> list[str]:
    return [] if len(held) == 1 else [told_of_names(variable, [each.name for each in held])]


def _ref(
    variable: str, held: Sequence[Input], told: Sequence[str], *, whole: bool = False
) -> ContextRef:
    if len(held) == 1:
        sha256, chars = _sha256(held[0].text), held[0].text.length()
    else:
        digest = hashlib.sha256()
        for each in held:
            digest.update(_sha256(each.text).encode() + each.name.encode("utf-8", "replace"))
        sha256, chars = digest.hexdigest(), -1
    return ContextRef(
        name=variable,
        sha256=sha256,
        bytes=sum(len(each.text) for each in held),
        chars=chars,
        sample="\n\n".join(told),
        whole=whole,
    )


def _sha256(text: HostText) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(text), _HASH_BYTES):
        digest.update(text.read_raw(start, start + _HASH_BYTES))
    return digest.hexdigest()


# What a run was given, kept as attachments when it begins and read back when it is run again.


_LABEL_CHARS_MAX = 1_000
_PIECE_BYTES = 1 << 20
_Texts = dict[str, HostText | dict[str, HostText]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInputs:
    """The data of a run: `values` go into the guest, `texts` stay on the host."""

    values: Mapping[str, object] = field(default_factory=dict)
    texts: Mapping[str, HostText | Mapping[str, HostText]] = field(default_factory=dict)
    inputs: tuple[InputRef, ...] = ()
    refs: tuple[TextRef, ...] = ()
    images: tuple[AttachmentRef, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredInputs:
    """Inputs that are kept. Their texts are of the copies: nobody else changes those."""

    inputs: tuple[Input, ...]
    # By variable and name: a file can be in several.
    refs: Mapping[tuple[str, str], AttachmentRef]

    @property
    def encodings(self) -> tuple[tuple[str, str], ...]:
        """The files that were decoded, each with what it was in."""
        found = {each.name: each.encoding for each in self.inputs if each.encoding}
        return tuple(found.items())


def stored(inputs: Sequence[Input], run_attachments: RunAttachments) -> StoredInputs:
    """Keep the inputs of a new run. They are committed with its first records."""
    batch = run_attachments.batch()
    refs: dict[tuple[str, str], AttachmentRef] = {}
    held: list[Input] = []
    for each in inputs:
        refs[each.variable, each.name], text = _kept(each, batch, run_attachments)
        held.append(dataclasses.replace(each, text=text, path=None))
    return StoredInputs(inputs=tuple(held), refs=refs)


def given_of(store: StoredInputs, layout: InputLayout) -> RunInputs:
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
    return RunInputs(
        values=layout.values,
        texts=layout.texts,
        inputs=tuple(
            InputRef(name=variable, key=key, attachment=refs[variable, name])
            for name, variable, key in layout.files
        ),
        refs=tuple(numbered),
        images=tuple(refs[each.variable, each.name] for each in store.inputs if each.is_picture),
    )


def given_again(started: RunStarted, run_attachments: RunAttachments) -> RunInputs:
    """The data of a recorded run, each text checked against its digest."""
    values: dict[str, object] = dict(started.values)
    for each in started.inputs:
        text = HostText(run_attachments.read(each.attachment))
        _place(values, each.name, each.key, text.slice(0, text.length()))
    texts: _Texts = {}
    for ref in started.texts:
        if ref.attachment is not None:
            _place(texts, ref.name, ref.key, run_attachments.text(ref.attachment.id))
    return RunInputs(
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


def _kept(
    given: Input, batch: Batch, run_attachments: RunAttachments
) -> tuple[AttachmentRef, HostText]:
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
        if os.fstat(file.fileno()).st_size > _PIECE_BYTES and run_attachments.durable:
            ref = batch.add(file, media_type=declared, label=label)
            text = run_attachments.own_text(ref)
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


# The documents of a run, as they are stored, and its answer checked against them.


def cited(
    ended: RunEnded | None, started: RunStarted, given: RunInputs, run_attachments: RunAttachments
) -> Cited:
    """Where the answer stands in what the run was given, and what it claims in vain.

    Follows from the record and the stored bytes: the same for a run that is looked at again.
    """
    if ended is None or ended.answer is None:
        return Cited()
    answered = ended.stop == "answered"
    try:
        return cited_in(
            ended.answer,
            question=started.goal,
            documents=Documents(_documents(started, given, run_attachments)),
            claimed=answered,
            typed=answered and started.schema is not None,
        )
    except (AttachmentError, LedgerError):
        return Cited()  # The copies are gone: nothing can be checked. The answer is the answer.


async def cited_aside(
    ended: RunEnded | None, started: RunStarted, given: RunInputs, run_attachments: RunAttachments
) -> Cited:
    """The same; long texts are gone through in a thread, for the loop is others' too."""
    if given.texts:
        return await asyncio.to_thread(cited, ended, started, given, run_attachments)
    return cited(ended, started, given, run_attachments)


def _documents(
    started: RunStarted, given: RunInputs, run_attachments: RunAttachments
) -> dict[str, HostText]:
    """By name. What programs had whole is read from its copy, what stays on the host in place."""
    # Runs from before there were attachments have their texts in their first record.
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
        held = given.texts.get(ref.name)
        text = held if isinstance(held, HostText) or held is None else held.get(ref.key or "")
        if text is not None:
            hold(ref, text)
    return found
