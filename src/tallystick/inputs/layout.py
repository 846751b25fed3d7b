"""Lay out the inputs of a run for its programs, and describe them to the model.

A single text in a variable is the variable itself. Several are a dictionary of texts under their
file names. Variables of up to 4 MB in all are real `str` in the guest; beyond that, the largest
stay on the host. Pictures are not for programs: the model sees them beside the task.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import msgspec

from tallystick.core.errors import UsageError
from tallystick.core.records import AIDS, ContextRef, ViewRef
from tallystick.inputs.description import (
    FILES_SHOWN,
    WHOLE_CHARS_MAX,
    describe_host_text,
    describe_host_texts,
    describe_in_short,
    describe_names,
    describe_passages,
    describe_text,
    files_shown,
    program_around,
    program_over,
    query_program,
)
from tallystick.inputs.judging import PlacedText, judging_program
from tallystick.inputs.nearest import nearest_passages
from tallystick.inputs.shapes import Shape, shape_of
from tallystick.runtime.context.inputs import Input
from tallystick.runtime.context.namespace import spelling_of
from tallystick.sandbox.text import HostText

STR_BYTES_MAX = 4_000_000
_BEGIN = "A block can begin like this:"
_A_MODEL_CAN = f"Code cannot judge texts, a model can. {_BEGIN}"
_HASH_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLayout:
    """The inputs of a run in the namespace of its programs, and their descriptions for the model.

    `values` are the variables in the guest, with `views` of their parts. `texts` are the variables
    that stay on the host.
    """

    contexts: tuple[ContextRef, ...] = ()
    # For the recursive strategy instead of `contexts`: its first program asks a model. Empty if no
    # text has rows to ask about.
    asking: tuple[ContextRef, ...] = ()
    values: dict[str, object] = field(default_factory=dict)
    texts: dict[str, HostText | dict[str, HostText]] = field(default_factory=dict)
    views: tuple[ViewRef, ...] = ()
    files: tuple[tuple[str, str, str | None], ...] = ()


def layout_of(
    inputs: Sequence[Input], *, question: str = "", aids: Collection[str] = AIDS
) -> InputLayout:
    """Return the layout of the inputs. Their description depends a little on the question.

    Texts for the guest are read whole. Without texts, the layout is empty. At most four texts are
    described, in equal shares of the first four variables. Of long prose, and of texts on the host,
    the passages nearest to the question are shown, unless `aids` leaves that out. Raise
    `UsageError` if two texts of a variable have the same name.
    """
    variables = _by_variable(inputs)
    if not variables:
        return InputLayout()
    on_host = _on_host(variables)
    builder = _LayoutBuilder(alone=len(variables) == 1, question=question, aids=aids)
    builder.read(variables, on_host)
    for place, (variable, held) in enumerate(variables.items()):
        # Each of the first variables has an equal share of the texts that are described.
        shown = max(1, FILES_SHOWN // len(variables)) if place < FILES_SHOWN else 0
        if variable in on_host:
            builder.keep_on_host(variable, held, shown=shown)
        else:
            builder.add_to_guest(variable, held, shown=shown)
    return builder.build()


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
    """Return the variables that stay on the host: the largest, until the others fit in 4 MB.

    A variable of several texts stays as a whole, so that programs find them in one dictionary.
    """
    sizes = {name: sum(len(each.text) for each in held) for name, held in variables.items()}
    left = sum(sizes.values())
    found: set[str] = set()
    for name in sorted(sizes, key=lambda name: sizes[name], reverse=True):
        if left <= STR_BYTES_MAX:
            break
        found.add(name)
        left -= sizes[name]
    return frozenset(found)


class _LayoutBuilder:
    """The builder of a layout. Variables are added one after the other."""

    def __init__(self, *, alone: bool, question: str, aids: Collection[str]) -> None:
        self._alone = alone
        self._question = question
        self._aids = aids
        self._contexts: list[ContextRef] = []
        self._values: dict[str, object] = {}
        self._texts: dict[str, HostText | dict[str, HostText]] = {}
        self._views: list[ViewRef] = []
        self._files: list[tuple[str, str, str | None]] = []
        self._placed: list[PlacedText] = []
        # The texts of the guest and their shapes, by variable and name, in the order of `_placed`.
        self._read: dict[tuple[str, str], tuple[str, Shape]] = {}
        self._near: _Near | None = None

    def read(self, variables: dict[str, list[Input]], on_host: Collection[str]) -> None:
        """Read the texts of the guest whole, and find the passages nearest to the question.

        Passages are of prose that is not shown whole, and of texts on the host.
        """
        searched: list[_Searched] = []
        for variable, held in variables.items():
            for each in held:
                key = None if len(held) == 1 else each.name
                if variable in on_host:
                    searched.append(_Searched(variable, key, each.text, on_host=True))
                    continue
                text = each.text.slice(0, each.text.length())
                shape = shape_of(text)
                self._read[variable, each.name] = text, shape
                if shape.prose and len(text) > WHOLE_CHARS_MAX:
                    searched.append(_Searched(variable, key, each.text, on_host=False))
        if "nearest" in self._aids:
            self._near = _near(searched, self._question)

    def add_to_guest(self, variable: str, held: Sequence[Input], *, shown: int) -> None:
        """Add a variable of the guest and its views. At most `shown` of its texts are described.

        A single text is described in one line if `shown` is 0.
        """
        single, count = len(held) == 1, len(held)
        descriptions = _heading(variable, held)
        shown = files_shown(count, at_most=shown)
        all_shown = single
        for place, each in enumerate(held):
            name, key = each.name, None if single else each.name
            text, shape = self._read[variable, name]
            self._views.extend(shape.views(of=variable, key=key))
            self._files.append((name, variable, key))
            self._placed.append((variable, key, shape))
            if place < shown:
                description, in_full = describe_text(
                    text,
                    shape,
                    of=variable,
                    key=key,
                    alone=self._alone and single,
                    count=count,
                    question=self._question,
                    beside=self._near is not None,
                )
                descriptions.append(description)
                all_shown = all_shown and in_full
            elif single:
                descriptions.append(describe_in_short(shape, of=variable, key=key))
                all_shown = False
        texts = {each.name: self._read[variable, each.name][0] for each in held}
        self._values[variable] = texts[held[0].name] if single else texts
        self._contexts.append(_ref(variable, held, descriptions, whole=all_shown))

    def keep_on_host(self, variable: str, held: Sequence[Input], *, shown: int) -> None:
        """Add a variable that stays on the host. At most `shown` of its texts are described.

        A single text is described in one line if `shown` is 0.
        """
        single, count = len(held) == 1, len(held)
        descriptions = _heading(variable, held)
        if not single:
            descriptions[0] = f"{descriptions[0]} {describe_host_texts(variable)}"
        for each in held[: files_shown(count, at_most=shown)]:
            key = None if single else each.name
            descriptions.append(
                describe_host_text(
                    each.text, of=variable, key=key, count=count, beside=self._near is not None
                )
            )
        if single and not shown:
            descriptions.append(describe_in_short(None, of=variable, key=None))
        texts = {each.name: each.text for each in held}
        self._texts[variable] = held[0].text if single else texts
        self._contexts.append(_ref(variable, held, descriptions))

    def build(self) -> InputLayout:
        """Return the layout, with a first program after the last description."""
        program = program_over(self._placed) if self._placed else None
        if self._near is not None and not any(
            shape.kind != "lines" for _, _, shape in self._placed
        ):
            program = self._near.program
        asking = query_program(self._placed, question=self._question)
        judging = None
        if "items" in self._aids:
            texts = [text for text, _ in self._read.values()]
            judging = judging_program(self._placed, texts, self._question)
        return InputLayout(
            contexts=self._with_program(program)
            if judging is None
            else self._with_program(judging, heading=_A_MODEL_CAN),
            asking=() if asking is None else self._with_program(asking),
            values=self._values,
            texts=self._texts,
            views=tuple(self._views),
            files=tuple(self._files),
        )

    def _with_program(
        self, program: str | None, *, heading: str = _BEGIN
    ) -> tuple[ContextRef, ...]:
        """Return the descriptions of the variables.

        The last one ends with the program, if any, and has the passages, if there are some.
        """
        *others, last = self._contexts
        if self._near is not None:
            last = msgspec.structs.replace(last, near=self._near.said)
        if program is not None:
            sample = f"{last.sample}\n\n{heading}\n```python\n{program}\n```"
            last = msgspec.structs.replace(last, sample=sample)
        return (*others, last)


@dataclass(frozen=True, slots=True)
class _Searched:
    """A text whose passages may be shown: its variable, its key or None, and where it is kept."""

    of: str
    key: str | None
    text: HostText
    on_host: bool


@dataclass(frozen=True, slots=True)
class _Near:
    """The passages nearest to the question, as they are shown, and a program that reads there."""

    said: str
    program: str


def _near(searched: Sequence[_Searched], question: str) -> _Near | None:
    """Return the passages of these texts that are nearest to a question, None if there are none."""
    found = nearest_passages([each.text for each in searched], question)
    if not found.passages:
        return None
    best = searched[found.passages[0][0]]
    named = [
        (spelling_of(searched[place].of, searched[place].key), text)
        for place, text in found.passages
    ]
    return _Near(
        said=describe_passages(named, whole=found.whole),
        program=program_around(found.word, of=best.of, key=best.key, on_host=best.on_host),
    )


def _heading(variable: str, held: Sequence[Input]) -> list[str]:
    return [] if len(held) == 1 else [describe_names(variable, [each.name for each in held])]


def _ref(
    variable: str, held: Sequence[Input], descriptions: Sequence[str], *, whole: bool = False
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
        sample="\n\n".join(descriptions),
        whole=whole,
    )


def _sha256(text: HostText) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(text), _HASH_BYTES):
        digest.update(text.read_raw(start, start + _HASH_BYTES))
    return digest.hexdigest()
