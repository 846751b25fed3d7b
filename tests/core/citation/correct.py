"""Decide whether a citation is right, from the bytes of the document alone."""

from __future__ import annotations

from tallystick.core.citation.cited import Citation, citation_of
from tallystick.core.citation.claims import Documents, TooMuch


def is_correct(citation: Citation, documents: Documents) -> bool:
    """Return True if the quoted words are at the cited bytes, and those on the cited lines.

    False also for an unknown document, and if checking would take too long.
    """
    if citation.name not in documents.names or not 0 <= citation.start <= citation.end:
        return False
    if citation.end > documents.size(citation.name):
        return False
    try:
        return citation_of(documents, citation.name, citation.start, citation.end) == citation
    except TooMuch:
        return False
