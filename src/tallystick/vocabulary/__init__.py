"""Vocabulary: the terms a program may use, and the verdict before it runs.

These names are the contract of this module; what else is in the package is internal.

- `check_program(source, vocabulary, ...)` reads a program and returns the `ValidationResult`
- `Vocabulary` is the terms: functions, tools, skills, and a `Thesaurus` from `read_thesaurus`
- `Rules` are the strictness and its numbers: `PERMISSIVE`, `NORMAL` and `STRICT` are the presets
- `decide` says what follows from a verdict: `Pass`, `Retry`, `Warn`, `Block` or `Escalate`
- `read_vocabulary` makes the value of `Session(vocabulary=)`, so that runs are checked
- `read_python` or `read_shell`, then `validate`, do the same without a sandbox
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

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
    from tallystick.vocabulary.terms import (
        Thesaurus,
        ThesaurusInvalid,
        Vocabulary,
        read_thesaurus,
    )

# Where each name is. A run without a vocabulary imports none of these modules.
_MODULES = {
    "alone": ("check_program",),
    "capability": ("VocabularyAsked", "read_vocabulary"),
    "check": (
        *("NORMAL", "PERMISSIVE", "STRICT", "Block", "Decision", "Escalate", "Pass", "Retry"),
        *("Rules", "ValidationResult", "Warn", "decide", "validate"),
    ),
    "program": ("Program", "Uncovered", "read_python"),
    "shell": ("read_shell",),
    "terms": ("Thesaurus", "ThesaurusInvalid", "Vocabulary", "read_thesaurus"),
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names}

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


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'tallystick.vocabulary' has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
