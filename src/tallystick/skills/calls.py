"""Serve the `skills.*` calls of programs: search, load, read a file, run a script.

Rule 1: a skill that is not for models is neither found by `search` nor loaded here; its user loads
it (`--skill`). A skill that the user has put into the prompt is open to programs too.
Rule 2: every use is noted together with its answer, so that evidence follows from the record.
Rule 3: nothing outside a skill's folder is read, and nothing of the process environment is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

import msgspec

from tallystick.core.errors import TallystickError, UsageError
from tallystick.core.json_text import digest
from tallystick.core.machine.prompt import cut
from tallystick.core.machine.state import SHOWN_CHARS_MAX
from tallystick.core.records import SkillLoaded, SkillModel, SkillUsed
from tallystick.core.resume_errors import ResumeRefused
from tallystick.runtime.calls.children import Children
from tallystick.runtime.calls.functions import FunctionPolicy, RunFunction
from tallystick.runtime.calls.queries import FindModel
from tallystick.runtime.calls.scope import Call
from tallystick.runtime.context.attachments import INLINE_BYTES_MAX
from tallystick.skills.errors import SkillArguments, SkillFailed
from tallystick.skills.format.manifest import Card
from tallystick.skills.layers import Registry, Skill
from tallystick.skills.match import search
from tallystick.skills.scripts import Job, ScriptResult, Scripts, text_files
from tallystick.skills.skills import (
    Skills,
    check_invocable,
    fill_in,
    plain_path,
    recorded_model_name,
)

NO_SKILLS = Skills(registry=Registry())
_FOUND_MAX = 50
_READ_BYTES_MAX = 4_000_000
_CHARS_PER_TOKEN = 4


class SkillCalls:
    """The `skills.*` functions of one run.

    `put` are the ids of skills that the user has put into the prompt: programs may use them even if
    models may not load them. `find_model` finds the models that programs may ask, and `children`
    starts the child runs that follow a skill.
    """

    def __init__(
        self,
        skills: Skills,
        *,
        session_id: str,
        scripts: Scripts,
        find_model: FindModel,
        children: Children,
        put: Collection[str] = (),
    ) -> None:
        self._find_model = find_model
        self._children = children
        self._skills = skills
        self._put = frozenset(put)
        self._session_id = session_id
        self._scripts = scripts

    def functions(self) -> list[RunFunction]:
        """Return the `skills.*` functions that programs find.

        `skills.run` and `skills.call` are effects if the run has a function with that policy, since
        a script may call it; otherwise they are reads, like the rest.
        """
        scripted: FunctionPolicy = "effect" if self._scripts.has_effects else "read"
        made: list[tuple[str, Callable[..., Any], bool, FunctionPolicy]] = [
            ("skills.search", self.search, True, "read"),
            ("skills.load", self.load, False, "read"),
            ("skills.read", self.read, True, "read"),
            ("skills.run", self.run, False, scripted),
            ("skills.call", self.call, False, scripted),
        ]
        return [
            RunFunction(
                function=function,
                name=name,
                policy=policy,
                needs="",
                local=local,
                handed=name != "skills.search",
                # A skill that names its tools restricts the others; it must not lock out skills.
                narrowed=False,
            )
            for name, function, local, policy in made
        ]

    def search(self, query: str = "", k: int = 10) -> list[dict[str, str]]:
        """Find skills by words of what they are for; all of them, by id, for an empty query.

        Returns at most `k` (50) dicts with id, description, when (if it says), and how to load it.
        Example: print(skills.search("invoices"))
        """
        if type(query) is not str:
            raise SkillArguments(f"skills.search: words are needed, not {type(query).__name__}")
        if type(k) is not int or not 1 <= k <= _FOUND_MAX:
            raise SkillArguments(f"skills.search: k is a number from 1 to {_FOUND_MAX}")
        cards = {
            each.id: each
            for each in self._skills.registry.cards()
            if not each.disable_model_invocation
        }
        found = search(tuple(cards.values()), query, k=k)
        return [_search_result(cards[each.id]) for each in found]

    async def load(self, call: Call, name: str, *args: object) -> str:
        """The instructions of a skill; `args` are put in where they ask for them.

        Some skills are followed by a run of their own: then its answer is returned instead.
        Example: print(skills.load("invoice-check"))
        """  # noqa: D401 (read by models)
        arguments = [each if isinstance(each, str) else str(each) for each in args]
        try:
            skill = self._find(name)
            body, sha256 = self._skills.instructions(skill)
        except TallystickError as error:
            self._check_not_begun(call, error)
            raise
        card = skill.card
        text = fill_in(self._skills, card.id, body, arguments, session=self._session_id)
        is_fork = skill.manifest.is_fork and self._children.may_begin(call)
        # A long answer is stored apart from its record. The prompt is made from records alone, so
        # the note then has the beginning of the text that the model is shown.
        is_long = len(text.encode("utf-8", "surrogatepass")) >= INLINE_BYTES_MAX
        loaded = SkillLoaded(
            id=card.id,
            source=card.source,
            sha256=sha256,
            token_estimate=-(-len(text) // _CHARS_PER_TOKEN),
            allowed_tools=card.allowed_tools,
            told=cut(text, SHOWN_CHARS_MAX) if is_long and not is_fork else "",
            files=self._skills.files(skill),
            model=self._model_of(skill),
            by_child=is_fork,
        )
        call.notes.append(loaded)
        if not is_fork:
            return text
        if arguments and text == fill_in(self._skills, card.id, body, (), session=self._session_id):
            # The child sees nothing else of the call, so what has no place in the text follows it.
            text = f"{text}\n\nArguments: {' '.join(arguments)}"
        return await self._follow(call, skill, loaded, text, arguments)

    async def _follow(
        self, call: Call, skill: Skill, loaded: SkillLoaded, text: str, arguments: Sequence[str]
    ) -> str:
        """Have a child run follow instructions, and return its answer.

        It is allowed what this skill allows, and no more than the program. It reads the text files
        that a model would be shown of the skill. Raise as `Children.follow` does.
        """
        files = text_files(self._skills, skill)
        own = () if loaded.allowed_tools is None else (loaded.allowed_tools,)
        model = call.scope.skill_model
        if loaded.model:
            model = SkillModel(name=loaded.model, skill=loaded.id)
        return await self._children.follow(
            call,
            text,
            context={path: files[path] for path in loaded.files if path in files} or None,
            tools=(*call.scope.tools, *own),
            model=model,
            # Not the text: its file may change until a child that was cut off is resumed.
            identity=["skill", loaded.id, list(arguments)],
        )

    def _model_of(self, skill: Skill) -> str:
        """Return the model that a skill names, by its name on record; "" if it names none.

        A model that the run may not ask keeps the name that the skill gives it: a call that would
        ask it is refused, and says so.
        """
        named = skill.manifest.own_model
        try:
            return recorded_model_name(named, self._find_model) if named else ""
        except UsageError:
            return named

    def _check_not_begun(self, call: Call, error: TallystickError) -> None:
        """Raise `ResumeRefused` if this call has a child run, which only its skill can continue."""
        if self._children.has_begun(call):
            raise ResumeRefused(
                run=call.scope.run,
                why=f"waits for a run that follows a skill: {error}; resume it where that skill is",
            ) from error

    def read(self, call: Call, name: str, path: str) -> str | bytes:
        """A file in a skill's folder: text, or bytes where it is none. At most 4 MB.

        Example: print(skills.read("invoice-check", "references/rates.csv"))
        """  # noqa: D401 (read by models)
        skill = self._find(name)
        path = plain_path(_text(path, "a path"))
        data = self._skills.read(skill, path, bytes_max=_READ_BYTES_MAX)
        call.notes.append(
            SkillUsed(id=skill.card.id, how="resource", what=path, sha256=digest(data))
        )
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return data

    async def run(
        self, call: Call, name: str, path: str, *args: object, stdin: str = ""
    ) -> dict[str, object]:
        """Run a Python script of a skill by itself, with arguments and standard input.

        It has its own sandbox, the files of the skill, and of the functions of this run those that
        the skill's allowed tools name. Returns a dict: stdout, stderr, exit.
        Example: print(skills.run("invoice-check", "scripts/check.py", "--strict")["stdout"])
        """
        argv = [each if isinstance(each, str) else str(each) for each in args]
        path = plain_path(_text(path, "a path"))
        job = Job(path=path, argv=argv, stdin=_text(stdin, "stdin"))
        result = await self._run_script(call, name, job, how="script", what=path)
        return {"stdout": result.stdout, "stderr": result.stderr, "exit": result.exit}

    async def call(
        self, call: Call, name: str, function: str, /, *args: object, **kwargs: object
    ) -> object:
        """Call a function in a Python file of a skill, with JSON values; returns what it returns.

        Example: skills.call("invoice-check", "scripts/check.py:total", rows)
        """
        path, _, which = _text(function, "a function").rpartition(":")
        if not path or not which.isidentifier():
            raise SkillArguments('skills.call: name a function as "scripts/file.py:function"')
        if any(type(each) is bytes for each in (*args, *kwargs.values())):
            raise SkillArguments("skills.call: bytes do not cross to a skill; pass JSON values")
        path = plain_path(path)
        job = Job(path=path, function=which, args=args, kwargs=kwargs)
        result = await self._run_script(call, name, job, how="function", what=f"{path}:{which}")
        if result.value is None:
            why = result.stderr[-1_500:] or f"it ended with {result.exit}"
            raise SkillFailed(f"{function[:80]} of skill {name[:80]!r}: {why}")
        try:
            value: object = msgspec.json.decode(result.value)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise SkillFailed(
                f"{function[:80]} of skill {name[:80]!r} returned a value that is not JSON: {error}"
            ) from error
        return value

    async def _run_script(
        self, call: Call, name: str, job: Job, *, how: Literal["script", "function"], what: str
    ) -> ScriptResult:
        skill = self._find(name)
        result = await self._scripts.run(self._skills, skill, job, call)
        call.notes.append(
            SkillUsed(
                id=skill.card.id,
                how=how,
                what=what,
                sha256=result.sha256,
                fuel=result.fuel,
                host_calls=result.host_calls,
            )
        )
        return result

    def _find(self, name: str) -> Skill:
        """Return the skill of a name.

        Raise `SkillArguments` if the name is not text, `SkillNotFound` if no skill has it, and
        `SkillAmbiguous` if several do. Raise `SkillDisabled` if models may not load the skill,
        unless a user has put it into the prompt.
        """
        skill = self._skills.registry.find(_text(name, "a name"))
        if skill.id not in self._put:
            check_invocable(skill.card)
        return skill


def _search_result(card: Card) -> dict[str, str]:
    """Return what a search says of a skill.

    It includes the call that loads the skill, because a weak model would not think of it.
    """
    when = {"when": card.when_to_use} if card.when_to_use else {}
    arguments = {"arguments": card.argument_hint} if card.argument_hint else {}
    load = f"print(skills.load({card.id!r}))"
    return {"id": card.id, "description": card.description, **when, **arguments, "load": load}


def _text(value: object, what: str) -> str:
    """Return the value if it is text; raise `SkillArguments`, which calls it `what`, if not."""
    if not isinstance(value, str):
        raise SkillArguments(f"{what} is text, not {type(value).__name__}")
    return value
