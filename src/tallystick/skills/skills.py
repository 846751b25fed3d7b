"""Record the skills of a run, show them in its prompt, and fill in their instructions."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tallystick.attachments.media import HEAD_BYTES, reference_to
from tallystick.attachments.port import Declared
from tallystick.core.errors import UsageError
from tallystick.core.json_text import canonical, digest
from tallystick.core.machine.answer import is_direct
from tallystick.core.machine.state import RunState, SkillState
from tallystick.core.records import (
    FILES_LISTED_MAX,
    AttachmentRef,
    EvidenceRef,
    PutSkill,
    SkillMatch,
    SkillsGiven,
)
from tallystick.runtime.calls.queries import FindModel
from tallystick.runtime.context.attachments import RunAttachments
from tallystick.skills.catalog import Catalog, Evidence, fit_catalog
from tallystick.skills.errors import (
    SkillArguments,
    SkillDisabled,
    SkillNotFound,
    SkillPathRefused,
    SkillUnreadable,
    SkillUntrusted,
)
from tallystick.skills.format.bundle import SIGNATURE_NAME, Bundle
from tallystick.skills.format.frontmatter import FILE_BYTES_MAX, split
from tallystick.skills.format.manifest import Card
from tallystick.skills.layers import Registry, Skill, scan
from tallystick.skills.match import Match, match_skills
from tallystick.skills.places import Layer

# Substitution: arguments and variables put into a skill's instructions.
#
# `$ARGUMENTS` is all arguments joined by spaces, `$1` the first, `$12` the twelfth, `${NAME}` a
# variable, `$$` a dollar. A placeholder without a value stays as it is written: `$0`, `$3` of two
# arguments, an unknown `${NAME}`, an unclosed `${`, a lone `$`. The text is read once from left to
# right and what is put in is not read again, so an argument cannot bring in a variable. Variables
# come from the caller alone, never from the environment of the process.


_ALL = "ARGUMENTS"
_DIGITS = frozenset("0123456789")
# No argument has a longer number, so it need not be computed.
_DIGITS_MAX = 9


def substitute(body: str, arguments: Sequence[str], *, variables: Mapping[str, str]) -> str:
    """Return a text with arguments and variables put in, in time linear in its length.

    Placeholders are `$ARGUMENTS`, `$1`, `${NAME}` and `$$`; one without a value stays as it is.
    What is put in is not read again.
    """
    pieces: list[str] = []
    copied = 0
    at = body.find("$")
    # Past the last closing brace no `${` is closed; asking each time would be quadratic.
    last_close = body.rfind("}")
    while at >= 0:
        end, value = _placeholder(
            body, at, arguments=arguments, variables=variables, last_close=last_close
        )
        if value is not None:
            pieces += (body[copied:at], value)
            copied = end
        at = body.find("$", end)
    pieces.append(body[copied:])
    return "".join(pieces)


def _placeholder(
    body: str,
    at: int,
    *,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    last_close: int,
) -> tuple[int, str | None]:
    """Return where the placeholder at a dollar ends, and its value; None leaves it as it is."""
    after = at + 1
    if body.startswith("$", after):
        return after + 1, "$"
    if body.startswith("{", after):
        if last_close < after:
            return after, None
        close = body.index("}", after)
        return close + 1, variables.get(body[after + 1 : close])
    if body.startswith(_ALL, after):
        return after + len(_ALL), " ".join(arguments)
    end = after
    while end < len(body) and body[end] in _DIGITS:
        end += 1
    return end, _argument(body[after:end], arguments)


def _argument(digits: str, arguments: Sequence[str]) -> str | None:
    """Return the argument with this number, counted from 1; None if there is none."""
    significant = digits.lstrip("0")
    if not significant or len(significant) > _DIGITS_MAX:
        return None
    place = int(significant)
    return arguments[place - 1] if place <= len(arguments) else None


# The skills of an agent, and what a run records of them when it begins.


BUDGET_CHARS = 2_000
CARDS_LABEL = "skill cards"
_PUT_CHARS_MAX = 200_000
_CANDIDATES_MAX = 20
_GOAL_CHARS_MAX = 200
_PATH_CHARS_MAX = 100
# The lowest scores that count as a fit: three words in common (3 / 4.5); its name in the task.
_FITS, _NAMED = 0.66, 2.0
# Variables that a skill may use in its own instructions. The first two are its id, since programs
# name a skill by that.
_VARIABLES = ("TALLYSTICK_SKILL_DIR", "TALLYSTICK_SKILL_ID", "TALLYSTICK_SESSION_ID")

# A function of the host that matches skills with a prompt, instead of the words they share.
HostMatch = Callable[[str, Sequence[Card]], Sequence[Match]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skills:
    """The skills that runs of an agent may load.

    `budget_chars` is the room for the catalog in the prompt, `limit` how many skills it lists at
    most, `pinned` the ids that come first. `strategy` and `host` say how skills are matched with a
    goal; `recent` are ids that were loaded lately, `variables` what instructions may name besides.
    `bundles` are the files, by id, of skills that are trusted by the digests of their files.
    """

    registry: Registry
    roots: tuple[tuple[str, str], ...] = ()
    budget_chars: int = BUDGET_CHARS
    limit: int | None = None
    pinned: tuple[str, ...] = ()
    recent: tuple[str, ...] = ()
    strategy: str = "metadata"
    top_n: int = 1
    host: HostMatch | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    bundles: Mapping[str, Bundle] = field(default_factory=dict)

    @classmethod
    def of(cls, *directories: str | Path, **settings: Any) -> Skills:  # noqa: ANN401
        """Return the skills in these directories; the first of a name counts.

        `settings` are the other fields of `Skills`. Raise `UsageError` if no directory is given, or
        if one does not exist, and `NotSupportedHere` on a system without POSIX directories.
        """
        if not directories:
            raise UsageError("Skills.of: name a directory that holds skills")
        for each in directories:
            if not os.path.isdir(each):
                raise UsageError(f"Skills.of: {str(each)!r} is no directory")
        layers = [Layer(name="flag", path=Path(each)) for each in directories]
        roots = tuple((each.name, root_text(each.path)) for each in layers)
        return cls(registry=scan(layers), roots=roots, **settings)

    def read(self, skill: Skill, path: str, *, bytes_max: int) -> bytes:
        """Return the bytes of a file of a skill.

        Raise `SkillUntrusted` if the skill is trusted by the digests of its files and this one
        differs. Raise `SkillNotFound`, `SkillPathRefused` or `SkillUnreadable` as `Folder.read`
        does.
        """
        data = skill.folder.read(path, bytes_max=bytes_max)
        bundle = self.bundles.get(skill.id)
        if bundle is not None:
            known = bundle.find(plain_path(path))
            if known is None or known.sha256 != digest(data):
                raise SkillUntrusted(id=skill.id, why=f"{path[:80]!r} changed since it was trusted")
        return data

    def files(self, skill: Skill) -> tuple[str, ...]:
        """Return up to 12 paths of files beside a skill's instructions, to be shown to a model.

        Those nearest the top are first. The signature, hidden files, and paths of more than 100
        characters are left out. The result is empty if the files cannot be listed.
        """
        bundle = self.bundles.get(skill.id)
        try:
            found = skill.folder.files() if bundle is None else bundle.files
        except (SkillNotFound, SkillPathRefused, SkillUnreadable):
            return ()
        paths = [each.path for each in found if each.path not in (skill.file, SIGNATURE_NAME)]
        short = [each for each in paths if len(each) <= _PATH_CHARS_MAX and "/." not in f"/{each}"]
        # Instructions usually refer to the files nearest the top.
        return tuple(sorted(short, key=lambda each: (each.count("/"), each))[:FILES_LISTED_MAX])

    def instructions(self, skill: Skill) -> tuple[str, str]:
        """Return the instructions as they are now, and the digest of their file.

        Raise as `read` does.
        """
        raw = self.read(skill, skill.file, bytes_max=FILE_BYTES_MAX)
        return split(raw).body, digest(raw)


def make_skills_given(
    skills: Skills,
    *,
    goal: str,
    put: Sequence[str],
    files: Sequence[str],
    run_attachments: RunAttachments,
    session: str,
    find_model: FindModel | None = None,
) -> SkillsGiven:
    """Return what a new run records of its skills.

    Match the skills with the goal and with `files`, the names of its inputs; fit the catalog, and
    load the skills in `put`. The cards are kept and committed with the run's first records. Raise
    `SkillNotFound`, `SkillAmbiguous`, `SkillArguments`, or another error of `Skills.read`, if a
    skill in `put` cannot be loaded. Raise `SkillArguments` too if one of them names a model that
    `find_model` does not know. What the host of `skills` raises is not.
    """
    cards = skills.registry.cards()
    matching = match_skills(
        goal,
        cards,
        paths=files,
        strategy=skills.strategy,
        host=skills.host,
        top_n=skills.top_n,
    )
    loaded = tuple(_load_put(skills, each, session=session, find_model=find_model) for each in put)
    raw = canonical(cards)
    given = SkillsGiven(
        cards=run_attachments.keep(raw, media_type="application/json", label=CARDS_LABEL),
        rendered="",
        budget_chars=skills.budget_chars,
        limit=skills.limit,
        pinned=_known_ids(skills.pinned, cards),
        recent=_known_ids(skills.recent, cards),
        strategy=matching.strategy,
        candidates=tuple(_skill_match(each) for each in matching.candidates[:_CANDIDATES_MAX]),
        matched=tuple(each.id for each in matching.matched),
        put=loaded,
        roots=skills.roots,
    )
    catalog = catalog_of(given, cards)
    begin = _first_block(matching.matched, catalog, goal=goal, has_data=bool(files))
    return msgspec.structs.replace(given, rendered=catalog.rendered, begin="" if loaded else begin)


def _first_block(matched: Sequence[Match], catalog: Catalog, *, goal: str, has_data: bool) -> str:
    """Return the block to suggest first: load a skill that surely fits, or search for one.

    With data, only a skill that is named in the task is surer than a look at the data. If every
    skill is listed with its words, there is nothing to search for. Return "" for no suggestion.
    """
    if not catalog.rendered:
        return ""
    if matched and matched[0].score >= (_NAMED if has_data else _FITS):
        return f"print(skills.load({matched[0].id!r}))"
    forms = {each.form for each in catalog.evidence.cards if not each.disable_model_invocation}
    if has_data or not forms & {"name", "none"}:
        return ""
    return f"print(skills.search({' '.join(goal.split())[:_GOAL_CHARS_MAX]!r}))"


def recorded_cards(given: SkillsGiven, run_attachments: RunAttachments) -> tuple[Card, ...]:
    """Return the cards that a run recorded, checked against their digest.

    Raise an `AttachmentError` if they are gone or damaged, `msgspec.MsgspecError` if they are none.
    """
    return msgspec.json.decode(run_attachments.read(given.cards), type=tuple[Card, ...])


def catalog_of(
    given: SkillsGiven,
    cards: Sequence[Card],
    *,
    loaded: Sequence[str] = (),
    used: Sequence[tuple[str, str]] = (),
) -> Catalog:
    """Return the catalog of a run, fitted to its room: the text, and the evidence of it.

    `used` are ids with what was used. Raise `InvalidName` if an id of the cards is not unique.
    """
    chosen = {
        each.id: Match(id=each.id, score=each.score, reason=each.reason)
        for each in given.candidates
        if each.id in given.matched
    }
    by: dict[str, tuple[str, ...]] = {}
    for id, what in used:
        by[id] = (*by.get(id, ()), what)
    return fit_catalog(
        cards,
        budget_chars=given.budget_chars,
        catalog_limit=given.limit,
        pinned=given.pinned,
        matched=chosen,
        recent=given.recent,
        loaded=loaded,
        used=by,
    )


def fill_in(skills: Skills, id: str, body: str, arguments: Sequence[str], *, session: str) -> str:
    """Return instructions with the arguments and variables put in.

    The variables are those of `skills`, the skill's id and the session's; none is of the process
    environment.
    """
    own = dict(zip(_VARIABLES, (id, id, session), strict=True))
    return substitute(body, arguments, variables={**skills.variables, **own})


def words_of(asked: str) -> tuple[str, list[str]]:
    """Return the name of a skill that a user asks for, and the arguments after it.

    Raise `SkillArguments` if the text is empty or its quotes are not closed.
    """
    try:
        words = shlex.split(asked)
    except ValueError as error:
        raise SkillArguments(f"skill {asked[:80]!r}: {error}") from error
    if not words:
        raise SkillArguments("the name of a skill for the prompt is empty")
    return words[0], words[1:]


def root_text(path: Path) -> str:
    """Return a directory as it is recorded; bytes of its name that are not UTF-8 are replaced."""
    return os.fsencode(path).decode("utf-8", "replace")


def _load_put(
    skills: Skills, asked: str, *, session: str, find_model: FindModel | None
) -> PutSkill:
    """Load a skill that the user names, with arguments after the name.

    The flag that models may not load it does not count. Raise `SkillArguments` if users may not
    load it either, if its text is too long for a prompt, if the run may not ask its model, or as
    `words_of` does. The errors of `Registry.find` and `Skills.read` are passed on.
    """
    name, arguments = words_of(asked)
    skill = skills.registry.find(name)
    card = skill.card
    if not card.user_invocable:
        raise SkillArguments(
            f"skill {card.id!r} cannot be loaded by users: it says user-invocable: false"
        )
    body, sha256 = skills.instructions(skill)
    text = fill_in(skills, card.id, body, arguments, session=session)
    if len(text) > _PUT_CHARS_MAX:
        raise SkillArguments(
            f"skill {card.id!r} has {len(text):,} characters; {_PUT_CHARS_MAX:,} go into a prompt"
        )
    return PutSkill(
        id=card.id,
        source=card.source,
        sha256=sha256,
        text=text,
        arguments=tuple(arguments),
        disable_model_invocation=card.disable_model_invocation,
        allowed_tools=card.allowed_tools,
        files=skills.files(skill),
        model=_model_of(skill, find_model),
    )


def _model_of(skill: Skill, find_model: FindModel | None) -> str:
    """Return the model that a skill names, by its name on record; "" if it names none.

    Raise `SkillArguments` if the run may not ask it. Without `find_model` the name is not checked.
    """
    named = skill.manifest.own_model
    if not named or find_model is None:
        return named
    try:
        return recorded_model_name(named, find_model)
    except UsageError as error:
        raise SkillArguments(
            f"skill {skill.id!r}: {error}; add it with --sub-model (in Python: models=), or give "
            f"one of these that name as an alias"
        ) from error


def recorded_model_name(named: str, find_model: FindModel) -> str:
    """Return the name by which a skill's model is recorded. Raise what `find_model` raises.

    It is that of the model. If another model of the run has the same one, it is the name that the
    skill gives: it has to lead to the same model again.
    """
    found = find_model(named)
    return found.name if find_model(found.name) is found else named


def _skill_match(match: Match) -> SkillMatch:
    return SkillMatch(id=match.id, score=match.score, reason=match.reason)


def _known_ids(ids: Sequence[str], cards: Sequence[Card]) -> tuple[str, ...]:
    there = {each.id for each in cards}
    return tuple(each for each in dict.fromkeys(ids) if each in there)


def plain_path(path: str) -> str:
    """Return a path without empty parts and `.`; one that will be refused is returned as it is."""
    if path.startswith("/") or path.endswith(("/", "/.")):
        return path
    return "/".join(each for each in path.split("/") if each not in ("", ".")) or path


def check_invocable(card: Card) -> None:
    """Raise `SkillDisabled` if models may not load the skill."""
    if card.disable_model_invocation:
        raise SkillDisabled(id=card.id)


# Evidence of each turn: which skills the prompt showed, kept by its digest.
#
# It follows from the cards and from what was loaded and used until then. So a replay computes it
# again, and a digest that differs is a divergence like any other.


MEDIA_TYPE = "application/json"
_LABEL = "skill evidence"


def evidence_keeper(
    given: SkillsGiven,
    run_attachments: RunAttachments,
    *,
    cards: Sequence[Card] = (),
    live: bool = True,
) -> Callable[[RunState], EvidenceRef | None]:
    """Return a function that makes the evidence of a turn from the state of the run.

    If `live`, the bytes of the evidence are committed with the next record; otherwise only their
    digest is computed. Without `cards`, the recorded ones are read at the first call, which raises
    as `recorded_cards` does. The function returns None for a run that is answered directly: its
    prompt has no catalog.
    """
    held = list(cards)
    made: dict[tuple[object, ...], EvidenceRef] = {}

    def keep(raw: bytes) -> AttachmentRef:
        if live:
            return run_attachments.keep(raw, media_type=MEDIA_TYPE, label=_LABEL)
        declared = Declared(media_type=MEDIA_TYPE, label=_LABEL)
        return reference_to(
            id=digest(raw), byte_len=len(raw), head=raw[:HEAD_BYTES], declared=declared
        )

    def of(state: RunState) -> EvidenceRef | None:
        if is_direct(state):
            return None
        if not held:
            held.extend(recorded_cards(given, run_attachments))
        key = (state.skills.loaded, state.skills.used)
        if key not in made:
            evidence = evidence_of(given, held, state.skills)
            raw = canonical(evidence)
            made[key] = EvidenceRef(
                ref=keep(raw), shown=len(evidence.shown), omitted=len(evidence.omitted)
            )
        return made[key]

    return of


def evidence_of(given: SkillsGiven, cards: Sequence[Card], skills: SkillState) -> Evidence:
    """Return the evidence of a run's catalog, after what `skills` says was loaded and used."""
    return catalog_of(given, cards, loaded=skills.loaded, used=skills.used).evidence


def read_evidence(ref: EvidenceRef, run_attachments: RunAttachments) -> Evidence:
    """Return the evidence that a turn recorded.

    Raise an `AttachmentError` if it is gone or damaged, `msgspec.MsgspecError` if it is none.
    """
    return msgspec.json.decode(run_attachments.read(ref.ref), type=Evidence)
