"""The documents of a run, as they are stored, and its answer checked against them."""

from __future__ import annotations

import asyncio

from tallystick.attachments.errors import AttachmentError
from tallystick.core.citing import Cited, cited_in
from tallystick.core.document import Documents
from tallystick.core.errors import LedgerError
from tallystick.core.records import InputRef, RunEnded, RunStarted, TextRef
from tallystick.runtime.given import Given, named_texts
from tallystick.runtime.shelf import Shelf
from tallystick.sandbox.text import HostText

__all__ = ["cited", "cited_aside"]


def cited(ended: RunEnded | None, started: RunStarted, given: Given, shelf: Shelf) -> Cited:
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
            documents=Documents(_documents(started, given, shelf)),
            claimed=answered,
            typed=answered and started.schema is not None,
        )
    except (AttachmentError, LedgerError):
        return Cited()  # The copies are gone: nothing can be checked. The answer is the answer.


async def cited_aside(
    ended: RunEnded | None, started: RunStarted, given: Given, shelf: Shelf
) -> Cited:
    """The same; long texts are gone through in a thread, for the loop is others' too."""
    if given.texts:
        return await asyncio.to_thread(cited, ended, started, given, shelf)
    return cited(ended, started, given, shelf)


def _documents(started: RunStarted, given: Given, shelf: Shelf) -> dict[str, HostText]:
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
        hold(each, HostText(shelf.read(each.attachment)))
    for ref in started.texts:
        held = given.texts.get(ref.name)
        text = held if isinstance(held, HostText) or held is None else held.get(ref.key or "")
        if text is not None:
            hold(ref, text)
    return found
