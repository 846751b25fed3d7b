"""Conversations with questions, and which turns hold the evidence: LoCoMo's file format.

The data is licensed CC BY-NC 4.0 and is not part of this repository. `TALLYSTICK_EVAL_DATA` names
the file, or a directory that has it, or has it one level down.
"""

from __future__ import annotations

import datetime
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tallystick.memory.recall.scope import NoteFields

__all__ = ["CATEGORIES", "Conversation", "Question", "find_file", "read_conversations"]

# 5 is adversarial: the question has no answer in the conversation, so it has no evidence to find.
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}

_TURN = re.compile(r"D:?\s*(\d+)\s*:\s*(\d+)")
_SESSION = re.compile(r"session_(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    text: str
    category: int
    evidence: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    name: str
    notes: Mapping[str, NoteFields]
    questions: tuple[Question, ...]


def find_file(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The file of conversations, if there is one."""
    given = environ.get("TALLYSTICK_EVAL_DATA", "")
    if not given:
        return None
    place = Path(given)
    if place.is_file():
        return place
    return next(iter(sorted((*place.glob("locomo*.json"), *place.glob("*/locomo*.json")))), None)


def read_conversations(path: Path) -> list[Conversation]:
    """The conversations of a file, with the questions of categories 1 to 4 that have evidence."""
    return [_conversation(entry) for entry in json.loads(path.read_text(encoding="utf-8"))]


def _conversation(entry: Mapping[str, Any]) -> Conversation:
    notes: dict[str, NoteFields] = {}
    talk: Mapping[str, Any] = entry["conversation"]
    sessions = {
        int(found[1]): talk[key] for key in talk if (found := _SESSION.fullmatch(key)) is not None
    }
    for number, turns in sorted(sessions.items()):
        for position, turn in enumerate(turns):
            seen = f" [image: {turn['blip_caption']}]" if turn.get("blip_caption") else ""
            notes[turn["dia_id"]] = NoteFields(
                text=turn["text"] + seen,
                author=turn["speaker"],
                session=str(number),
                created_at=_time(talk.get(f"session_{number}_date_time", "")),
                position=position,
            )
    questions = (_question(each, notes) for each in entry["qa"] if each["category"] in CATEGORIES)
    return Conversation(
        name=entry["sample_id"],
        notes=notes,
        questions=tuple(each for each in questions if each.evidence),
    )


def _time(written: str) -> int:
    """Milliseconds of `1:56 pm on 8 May, 2023`; 0 if it is written otherwise."""
    try:
        said = datetime.datetime.strptime(f"{written} +0000", "%I:%M %p on %d %B, %Y %z")
    except ValueError:
        return 0
    return int(said.timestamp()) * 1000


def _question(each: Mapping[str, Any], notes: Mapping[str, NoteFields]) -> Question:
    """Evidence is written in several ways: `D8:6; D9:17`, `D:11:26`, `D30:05`."""
    turns = {
        f"D{int(session)}:{int(turn)}"
        for written in each["evidence"]
        for session, turn in _TURN.findall(written)
    }
    return Question(
        text=each["question"],
        category=each["category"],
        evidence=frozenset(turns & notes.keys()),
    )
