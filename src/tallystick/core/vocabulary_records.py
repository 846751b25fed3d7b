"""What a run's ledger says of its vocabulary: which one, and what came of each program's check."""

from __future__ import annotations

from typing import Literal

import msgspec

from tallystick.core.attachment import AttachmentRef

__all__ = ["CheckDecision", "CheckProgram", "PersonDecision", "ProgramChecked", "VocabularyGiven"]

Strictness = Literal["permissive", "normal", "strict"]
CheckDecision = Literal["pass", "retry", "warn", "block", "escalate"]
PersonDecision = Literal["approve", "deny"]


class VocabularyGiven(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How strictly programs are checked before they run, and against which thesaurus.

    The other terms are the functions and skills of the run.
    """

    strictness: Strictness
    ratio_min: float
    retries_max: int
    thesaurus: AttachmentRef | None = None


class CheckProgram(msgspec.Struct, frozen=True, kw_only=True):
    """Have the program that is next checked. Nothing is begun by it, so it is not written down."""

    turn: int
    part: int
    sha256: str


class ProgramChecked(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="program.checked"
):
    """A program was held against the vocabulary. It follows from the record, and is made again.

    `feedback` is what the model is told, if it is told something. The fields after it are the
    verdict.
    """

    turn: int
    part: int
    sha256: str
    decision: CheckDecision
    feedback: str = ""
    is_valid: bool = True
    matched_terms: tuple[str, ...] = ()
    unknown_terms: tuple[str, ...] = ()
    suggestions: tuple[tuple[str, tuple[str, ...]], ...] = ()
    message: str = ""
    retry_count: int = 0
    escalation_required: bool = False
