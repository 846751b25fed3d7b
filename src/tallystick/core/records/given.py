"""Define the records of a run's inputs: attachments, texts, memory, session, vocabulary, skills."""

from __future__ import annotations

from typing import Literal

import msgspec


class AttachmentRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reference to bytes, by their name, with the type that they are treated as.

    `id` and `byte_len` come from the bytes. `media_type` is the declared one unless the bytes show
    another; then `declared` has the declared one.
    """

    id: str
    media_type: str
    byte_len: int
    width: int | None = None
    height: int | None = None
    label: str | None = None
    declared: str | None = None


# The inputs of a run, as its first record names them: texts, views of them, pictures.


class ContextRef(msgspec.Struct, frozen=True, kw_only=True):
    """A text that the program is given, named by its digest.

    `sample` is the part that the model is shown; `whole` is True if that is all of the text. `near`
    are the passages nearest to the task, of this and other texts, if it was shown any.
    """

    name: str
    sha256: str
    bytes: int
    chars: int
    sample: str
    whole: bool = False
    near: str | msgspec.UnsetType = msgspec.UNSET


class TextRef(msgspec.Struct, frozen=True, kw_only=True):
    """A text that stays on the host, as the program's namespace names it."""

    name: str
    key: str | None
    id: int
    bytes: int
    attachment: AttachmentRef | None = None


class InputRef(msgspec.Struct, frozen=True, kw_only=True):
    """A text that was given whole: its variable, and the key if the variable is a dictionary."""

    name: str
    key: str | None
    attachment: AttachmentRef


class ViewRef(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed form of a text, under a name that is made when a program uses it.

    `of` is the variable that holds the text, `key` the entry if that is a dictionary. A table has
    its columns in order, each with the kind of its cells; `amount` is a number with separators or a
    currency sign, such as "$1,204.50".
    """

    name: str
    kind: Literal["lines", "table", "json_lines", "json", "numbers"]
    of: str
    key: str | None = None
    delimiter: str = ","
    columns: tuple[tuple[str, Literal["int", "float", "amount", "str"]], ...] = ()


# Records of memory: which one a run has, and which notes it read and wrote.
#
# Only the ids of notes are recorded here: their texts are in the memory, and in the answers of the
# calls. By these ids, an erasure finds the runs that have read or written a note.


class MemoryGiven(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The memory of a run: its tenant, the id of its store, and the agent it is read for.

    `begin` is the first block that the model is shown: weak models write what they see.
    """

    tenant: str
    store: str
    agent_id: str
    begin: str = ""


class NotesTouched(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Notes that one call recalled or remembered.

    `read_id` is the recall's receipt, `receipt_sha256` its hash in the chain of receipts. A call
    that runs a script may do both, several times. Then `ids` are of all that it did, `how` is
    `recalled` if anything was recalled, `read_id` is of its first recall and `also` of each further
    one.
    """

    how: Literal["recalled", "remembered"]
    ids: tuple[str, ...]
    read_id: str | None = None
    receipt_sha256: str | None = None
    also: tuple[str, ...] = ()


# Records of a run's session: which one, and the interpreter that the run continued from.
#
# A run names the image and holds it itself. So replay, resume and fork load the same one, even if
# the session has changed or is gone.


# The name of the context variables of a session in its programs.
CONTEXT_VARIABLES = "context_variables"
# The names that the runtime itself gives to programs.
TAKEN = frozenset(
    {
        *("FINAL", "FINAL_VAR", "SHOW_VARS", "answer", "outputs", "budget", "attachments"),
        *("llm_query", "llm_query_batched", "rlm_query", "rlm_query_batched"),
        *("HostError", "SandboxViolation", "Final", "final", "final_answer"),
    }
)


class SessionGiven(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The session of a run, as it was when the run began.

    `image` is the interpreter that the run continues from, None for a fresh one, and `run` the run
    that had left it. `told` is the text about earlier runs in the prompt, `has` the one about what
    programs find.
    """

    session: str
    image: AttachmentRef | None = None
    run: str | None = None
    told: str = ""
    has: str = ""


# Records of a run's vocabulary: which one, and the result of each program's check.


Strictness = Literal["permissive", "normal", "strict"]
CheckDecision = Literal["pass", "retry", "warn", "block", "escalate"]
PersonDecision = Literal["approve", "deny"]


class VocabularyGiven(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The strictness of the check before programs run, and the thesaurus for it.

    The other terms are the functions and skills of the run. `reading` says how programs are read:
    1 with the parser of the host's Python, 2 with that of the Python that runs them. `parks` says
    that a run whose program needs a person ends as `waiting`; older ones end as `refused`.
    """

    strictness: Strictness
    ratio_min: float
    retries_max: int
    thesaurus: AttachmentRef | None = None
    reading: int = 1
    parks: bool = False


class CheckProgram(msgspec.Struct, frozen=True, kw_only=True):
    """Have the next program checked. It begins nothing, so it is not recorded."""

    turn: int
    part: int
    sha256: str


class ProgramChecked(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="program.checked"
):
    """A program was compared with the vocabulary. Replay computes this record again.

    `feedback` is the text that the model is shown, if any. The fields after it are the verdict.
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


# Records of skills: which were there, shown, matched, loaded and used.
#
# The catalog that is shown follows from the cards, the goal, and what was loaded and used until
# then. So it can be computed again from the record and compared. The tags are those that other
# hosts write.


FILES_LISTED_MAX = 12


class SkillMatch(msgspec.Struct, frozen=True, kw_only=True):
    """A skill that fits what was asked, how well, and by what."""

    id: str
    score: float
    reason: str


class SkillModel(msgspec.Struct, frozen=True, kw_only=True):
    """The model that a skill names for model calls which name none. `skill` is the skill's id."""

    name: str
    skill: str


class PutSkill(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A skill that the user put into the prompt, with its instructions as they were filled in.

    `model` is the model that it names for calls of programs, if it names one.
    """

    id: str
    source: str
    sha256: str
    text: str
    arguments: tuple[str, ...] = ()
    disable_model_invocation: bool = False
    allowed_tools: tuple[str, ...] | None = None
    files: tuple[str, ...] = ()
    model: str = ""


class SkillsGiven(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The skills of a run when it began.

    `cards` are what was known of each, as JSON; `rendered` is the catalog in the prompt, fitted to
    `budget_chars`. Its order comes from `pinned`, `matched` and `recent`; `roots` are the layers
    that were searched, each with its directory. `begin` is the first block that the model is shown:
    weak models write what they see.
    """

    cards: AttachmentRef
    rendered: str
    budget_chars: int
    limit: int | None = None
    pinned: tuple[str, ...] = ()
    recent: tuple[str, ...] = ()
    strategy: str = "metadata"
    candidates: tuple[SkillMatch, ...] = ()
    matched: tuple[str, ...] = ()
    put: tuple[PutSkill, ...] = ()
    roots: tuple[tuple[str, str], ...] = ()
    begin: str = ""


class SkillMatched(msgspec.Struct, frozen=True, kw_only=True, tag="skill_matched"):
    """The goal was compared with the skills. Recorded also if none fits.

    `candidates` are all that fit at all, `matched` those that were chosen.
    """

    strategy: str
    candidates: tuple[SkillMatch, ...]
    matched: tuple[str, ...]


class SkillLoaded(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="skill.loaded"
):
    """A program read the instructions of a skill. `sha256` is of the file that has them.

    `told` is the part that the model is shown, if the answer is so long that it is kept apart.
    `files` are the first of the other files in its folder. `model` is the model that it names for
    calls of programs, if it names one. With `by_child`, a child run followed the instructions, and
    the program was given the child's answer.
    """

    id: str
    source: str
    sha256: str
    token_estimate: int
    disable_model_invocation: bool = False
    allowed_tools: tuple[str, ...] | None = None
    provenance: Literal["program", "user"] = "program"
    told: str = ""
    files: tuple[str, ...] = ()
    model: str = ""
    by_child: bool = False


class SkillUsed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="skill.used"):
    """A program opened a file of a skill, ran a script of it, or called a function in one.

    `sha256` is of that file. What a script used counts for the run.
    """

    id: str
    how: Literal["resource", "script", "function"]
    what: str
    sha256: str
    fuel: int = 0
    host_calls: int = 0

    @property
    def said(self) -> str:
        """The use as the evidence names it, such as `script clean.py`."""
        return f"{self.how} {self.what}"


class EvidenceRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The evidence of one turn, kept as an attachment and named by its digest."""

    ref: AttachmentRef
    shown: int
    omitted: int


def skill_files_text(id: str, files: tuple[str, ...]) -> str:
    """Return the sentences about the files of a skill for the model, "" if it has none.

    Instructions name these files as if they were in the directory, but `open` does not find them.
    """
    if not files:
        return ""
    told = [
        f"Files of this skill: {', '.join(files)}.",
        f"Read one: print(skills.read({id!r}, {files[0]!r})).",
    ]
    script = next((each for each in files if each.endswith(".py")), None)
    if script is not None:
        told.append(f"Run one: print(skills.run({id!r}, {script!r})).")
    return " ".join(told)
