"""Names of skills: which may stand in an id, and what a folder's name gives."""

from __future__ import annotations

import re
import unicodedata

from tallystick.skills.line import hidden

__all__ = ["NAME_CHARS_MAX", "folder_name", "usable_name"]

# The public limit is 64; what is longer is a fault of form. Beyond this it is no name.
NAME_CHARS_MAX = 128
_OTHERS = "-_. "
_RUN = re.compile(r"-{2,}")


def usable_name(text: str) -> str | None:
    """A name as it stands in an id, or None if it cannot.

    Letters, marks and digits of any script, and inside also `-`, `_`, `.` and single spaces. So an
    id is one line, has no slash but that of its namespace, is no option of a command, and ends no
    quotes wherever it is put.
    """
    if hidden(text.strip()):
        return None
    name = " ".join(unicodedata.normalize("NFKC", text).split())
    if not name or len(name) > NAME_CHARS_MAX or not (name[0].isalnum() or name[0] == "_"):
        return None
    return name if all(_stands(each) for each in name) else None


def folder_name(directory: str) -> str | None:
    """The name that a folder gives to what is in it: strange characters become hyphens.

    None for a folder whose name hides characters, or has none that can be used.
    """
    if hidden(directory):
        return None
    normal = unicodedata.normalize("NFKC", directory)
    made = "".join(each if _stands(each) else "-" for each in normal)
    return usable_name(directory) or usable_name(_RUN.sub("-", made).strip("-. ")[:NAME_CHARS_MAX])


def _stands(each: str) -> bool:
    return each.isalnum() or each in _OTHERS or unicodedata.category(each) in {"Mn", "Mc"}
