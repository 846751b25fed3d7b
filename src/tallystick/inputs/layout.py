"""Lay out the inputs of a run for its programs, and describe them to the model.

A single text in a variable is the variable itself. Several are a dictionary of texts under their
file names. Variables of up to 4 MB in all are real `str` in the guest; beyond that, the largest
stay on the host. Pictures are not for programs: the model sees them beside the task.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from tallystick.core.errors import UsageError
from tallystick.core.records import ContextRef, ViewRef
from tallystick.inputs.description import (
    FILES_SHOWN,
    PlacedText,
    describe_host_text,
    describe_host_texts,
    describe_in_short,
    describe_names,
    describe_text,
    files_shown,
    program_over,
    query_program,
)
from tallystick.inputs.shapes import shape_of
from tallystick.runtime.context.inputs import Input
from tallystick.sandbox.text import HostText

STR_BYTES_MAX = 4_000_000
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


def layout_of(inputs: Sequence[Input], *, question: str = "") -> InputLayout:
    """Return the layout of the inputs. Their description depends a little on the question.

    Texts for the guest are read whole. Without texts, the layout is empty. At most four texts are
    described, in equal shares of the first four variables. Raise `UsageError` if two texts of a
    variable have the same name.
    """
    variables = _by_variable(inputs)
    if not variables:
        return InputLayout()
    on_host = _on_host(variables)
    builder = _LayoutBuilder(alone=len(variables) == 1, question=question)
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

    def __init__(self, *, alone: bool, question: str) -> None:
        self._alone = alone
        self._question = question
        self._contexts: list[ContextRef] = []
        self._values: dict[str, object] = {}
        self._texts: dict[str, HostText | dict[str, HostText]] = {}
        self._views: list[ViewRef] = []
        self._files: list[tuple[str, str, str | None]] = []
        self._placed: list[PlacedText] = []

    def add_to_guest(self, variable: str, held: Sequence[Input], *, shown: int) -> None:
        """Add a variable of the guest and its views. At most `shown` of its texts are described.

        A single text is described in one line if `shown` is 0.
        """
        single, count = len(held) == 1, len(held)
        descriptions = _heading(variable, held)
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
                description, in_full = describe_text(
                    text,
                    shape,
                    of=variable,
                    key=key,
                    alone=self._alone and single,
                    count=count,
                    question=self._question,
                )
                descriptions.append(description)
                all_shown = all_shown and in_full
            elif single:
                descriptions.append(describe_in_short(shape, of=variable, key=key))
                all_shown = False
        self._values[variable] = whole[held[0].name] if single else whole
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
            descriptions.append(describe_host_text(each.text, of=variable, key=key, count=count))
        if single and not shown:
            descriptions.append(describe_in_short(None, of=variable, key=None))
        texts = {each.name: each.text for each in held}
        self._texts[variable] = held[0].text if single else texts
        self._contexts.append(_ref(variable, held, descriptions))

    def build(self) -> InputLayout:
        """Return the layout, with a first program after the last description."""
        program = program_over(self._placed) if self._placed else None
        asking = query_program(self._placed, question=self._question)
        return InputLayout(
            contexts=self._with_program(program),
            asking=() if asking is None else self._with_program(asking),
            values=self._values,
            texts=self._texts,
            views=tuple(self._views),
            files=tuple(self._files),
        )

    def _with_program(self, program: str | None) -> tuple[ContextRef, ...]:
        """Return the descriptions of the variables. The last one ends with the program, if any."""
        if program is None:
            return tuple(self._contexts)
        *others, last = self._contexts
        said = f"A block can begin like this:\n```python\n{program}\n```"
        return (*others, msgspec.structs.replace(last, sample=f"{last.sample}\n\n{said}"))


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
