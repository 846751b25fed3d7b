"""Vocabulary: the terms a program may use, and the verdict before it runs.

These names are the contract of this module; what else is in the package is internal.

- `check_program` reads a program and returns the `ValidationResult`; `Uncovered` is a place that
  the check cannot read
- `Vocabulary` is the terms: functions, tools, skills, and a `Thesaurus` from `read_thesaurus`,
  which raises `ThesaurusInvalid`
- `Rules` are the strictness and its numbers: `PERMISSIVE`, `NORMAL` and `STRICT` are the presets
- `decide` returns the `Decision` that follows: `Pass`, `Retry`, `Warn`, `Block` or `Escalate`
- `read_vocabulary` makes the value of `Agent(vocabulary=)`, a `VocabularyAsked`, so that runs are
  checked
- `read_python` or `read_shell` return a `Program`; with `validate` that needs no sandbox
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.lazy_names import lazy_names

if TYPE_CHECKING:
    from tallystick.vocabulary.alone import check_program
    from tallystick.vocabulary.capability import VocabularyAsked, read_vocabulary
    from tallystick.vocabulary.check import (
        NORMAL,
        PERMISSIVE,
        STRICT,
        Block,
        Decision,
        Escalate,
        Pass,
        Retry,
        Rules,
        ValidationResult,
        Warn,
        decide,
        validate,
    )
    from tallystick.vocabulary.program import Program, Uncovered, read_python
    from tallystick.vocabulary.shell import read_shell
    from tallystick.vocabulary.terms import Thesaurus, ThesaurusInvalid, Vocabulary, read_thesaurus

__all__ = [
    "NORMAL",
    "PERMISSIVE",
    "STRICT",
    "Block",
    "Decision",
    "Escalate",
    "Pass",
    "Program",
    "Retry",
    "Rules",
    "Thesaurus",
    "ThesaurusInvalid",
    "Uncovered",
    "ValidationResult",
    "Vocabulary",
    "VocabularyAsked",
    "Warn",
    "check_program",
    "decide",
    "read_python",
    "read_shell",
    "read_thesaurus",
    "read_vocabulary",
    "validate",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "tallystick.vocabulary.alone": "check_program",
            "tallystick.vocabulary.capability": "VocabularyAsked read_vocabulary",
            "tallystick.vocabulary.check": (
                "Block Decision Escalate NORMAL PERMISSIVE Pass Retry Rules STRICT "
                "ValidationResult Warn decide validate"
            ),
            "tallystick.vocabulary.program": "Program Uncovered read_python",
            "tallystick.vocabulary.shell": "read_shell",
            "tallystick.vocabulary.terms": "Thesaurus ThesaurusInvalid Vocabulary read_thesaurus",
        },
    )
