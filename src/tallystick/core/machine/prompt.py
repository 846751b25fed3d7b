"""Compose what the model reads: a fixed part that stays small, the task, the run so far, advice.

The prompt only grows, until it is compacted. Each message is made once, from one record, and keeps
its bytes. So a server can cache a prefix, and the ledger can name a prompt by what was added to the
last one. Programs are shown in exactly the form the model is asked to write. Roles alternate
strictly.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from tallystick.core.clock import clock_sentence
from tallystick.core.json_text import canonical, digest
from tallystick.core.machine.commands import names_bound, tree_of
from tallystick.core.records import (
    AIDS,
    AttachmentRef,
    ProgramFailure,
    ProgramFinished,
    RunStarted,
    ViewRef,
    skill_files_text,
)

# The advice next to an error: the names that exist, instead of the one that a program looked for.
#
# Each hint is one line about this run's own names. A hint that could be wrong is not given: a weak
# model follows it all the same.


_COLUMNS_SHOWN = 20
_OF_FILES = frozenset(
    {"FileNotFoundError", "PermissionError", "ModuleNotFoundError", "ImportError"}
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_QUOTED = re.compile(r"'([A-Za-z_][\w.]{0,60})'")


def data_names(started: RunStarted) -> tuple[str, ...]:
    """Return the names under which a program finds its data, the most useful first.

    They are the views, with `lines` last, and then the texts and values that the run was given.
    """
    views = dict.fromkeys(view.name for view in started.views)
    names = [name for name in views if name != "lines"]
    if "lines" in views:
        names.append("lines")
    return (*names, *(each.name for each in started.contexts))


def uses_data(source: str, started: RunStarted) -> bool:
    """Return True if a program has a name of its data, or `open`, as a word anywhere in it."""
    return not {*data_names(started), "open"}.isdisjoint(_WORD.findall(source))


def advice(failure: ProgramFailure, started: RunStarted) -> str | None:
    """Return help for this failure in a line, or None if there is no certain one.

    A column that does not exist gives a line for each of up to four tables. Missing files and
    modules of a native run give none.
    """
    # The cases go from narrow to wide: `import skills` fails like any other missing module, but
    # needs another line.
    names = ", ".join(f"`{name}`" for name in data_names(started))
    if started.backend != "wasm" and failure.kind in _OF_FILES:
        # A native run has files and packages, and this module does not know which.
        return None
    match failure.kind:
        case "SandboxViolation" | "FileNotFoundError" | "PermissionError" if (
            "open(" in failure.message or "files.read" in failure.message
        ):
            files = "" if started.skills is None else _FILES_OF_SKILLS
            if names:
                return f"There are no such files. The data is already there: {names}.{files}"
            return f"There are no files here.{files}"
        case "ModuleNotFoundError" | "ImportError" if _imports_skills(failure, started):
            return (
                "`skills` is no module, and what it knows are texts to follow, not functions. It "
                f"is there already: {_search(started)}"
            )
        case "ModuleNotFoundError" | "ImportError":
            data = f" The data is already there: {names}." if names else ""
            return f"Only the standard library can be imported.{data}"
        case "KeyError":
            return _column_advice(failure.message, started.views)
        case "NameError":
            return _name_advice(failure, names, started)
        case "EOFError" if "input" in failure.traceback:
            return "Nobody answers input(). Take values from the data."
        case _:
            return None


_FILES_OF_SKILLS = " Files of a skill: skills.read(name, path)."


def _imports_skills(failure: ProgramFailure, started: RunStarted) -> bool:
    return started.skills is not None and "'skills" in failure.message


def _search(started: RunStarted) -> str:
    given = started.skills
    return given.begin if given is not None and given.begin else 'print(skills.search("words"))'


def _column_advice(message: str, views: tuple[ViewRef, ...]) -> str | None:
    """Return the columns of up to four tables, if a program asked for one that no table has.

    None if there is no table or one has it. At most 20 columns of each are named.
    """
    tables = [view for view in views if view.kind == "table"]
    known = {column for view in tables for column, _ in view.columns}
    if not tables or message.strip("'\"") in known:
        return None
    return "\n".join(
        f"The keys of `{view.name if view.key is None else f'{view.name}[{view.key!r}]'}` are: "
        + ", ".join(repr(name) for name, _ in view.columns[:_COLUMNS_SHOWN])
        for view in tables[:4]
    )


def _name_advice(failure: ProgramFailure, names: str, started: RunStarted) -> str | None:
    found = _QUOTED.search(failure.message)
    if found is None:
        return None
    if f"FINAL({found[1]}" in failure.traceback and found[1][:1].isupper():
        return f"Text needs quotes: FINAL({found[1]!r})."
    if any(f"\n{found[1]} = " in each.sample for each in started.contexts):
        # The model took the example for a program that had been run.
        return f"Your block has to begin with the lines of the example that make `{found[1]}`."
    data = f" The data is in {names}." if names else ""
    return f"`{found[1]}` was never defined: import or define it first.{data}"


# The fixed part of the prompt of a native run, which has a shell and files.


# A grant of a host that programs may reach: `net:HOST` or `net:HOST:PORT`.
NET = "net:"
NO_NETWORK = "net:none"

_NATIVE_SYSTEM = """\
You solve a task by writing Python or bash. Every reply is one block of code and no other text:

```python
...
```

or

```bash
...
```

The block runs at once on a Linux machine of your own, in a working directory whose files stay. \
Python's variables and functions are there next time, and so are the shell's directory and its \
exported variables. You then see what it printed, and write the next block. The data is already \
in Python variables: use them, do not type data in again; what the shell is to read, write into a \
file first. The packages of this machine's Python can be imported. {network}

A reply that is only SNAPSHOT(name) keeps files and variables as they are, ROLLBACK(name) goes \
back to them.

Print what you find or compute. When you have seen the value that answers the task, finish with a \
```python block that calls FINAL(value): exactly what is asked for, nothing else. SHOW_VARS() \
lists your variables; FINAL_VAR("name") answers with one of them."""
_CLOSED = "There is no network."
_OPEN = "Of the network only these can be reached, by HTTP and HTTPS: {hosts}."
_HOSTS_MAX = 20


def native_system(started: RunStarted) -> str:
    """Return the fixed part of a native run, with up to 20 hosts that its programs can reach."""
    hosts = [each.removeprefix(NET) for each in started.grants if each.startswith(NET)]
    named = ", ".join(hosts[:_HOSTS_MAX]) + (" ..." if len(hosts) > _HOSTS_MAX else "")
    return _NATIVE_SYSTEM.format(network=_OPEN.format(hosts=named) if hosts else _CLOSED)


# The prompts of runs: a fixed part that stays small, the task, and the run so far.


TEMPLATE = "python@4"
_WITHOUT_TIME, _WITHOUT_AIDS = "python@2", "python@3"
# The prompts that this version can compute again; it writes the last one.
TEMPLATES = (_WITHOUT_TIME, _WITHOUT_AIDS, TEMPLATE)
# The stop of a native program that was cut off and is given up.
ABANDONED = "abandoned"
# The functions that other parts of the prompt introduce, if the run has them.
_TOLD_LATER = ("outputs.", "llm_query", "rlm_query", "budget.", "skills.")
# Those of a memory have a program of their own.
_OF_MEMORY = frozenset({"recall", "score", "cite", "remember"})
_FUNCTIONS = "These functions are defined already. Call them; do not define or import them:"
_SAMPLES_MAX = 3
_OUTPUT_CHARS_MAX = 4_000
_ERROR_CHARS_MAX = 1_200
_GOAL_CHARS_MAX = 300
_LINE_CHARS_MAX = 400

_WASM_SYSTEM = """\
You solve a task by writing Python. Every reply is one block of code and no other text:

```python
...
```

The block runs at once in a session that stays: variables and functions are there next time. You \
then see what it printed, and write the next block. The data is already in variables: use them, do \
not type data in again, do not open files. Only the standard library can be imported.

Print what you find or compute. When you have seen the value that answers the task, finish with a \
block that calls FINAL(value): exactly what is asked for, nothing else. SHOW_VARS() lists your \
variables; FINAL_VAR("name") answers with one of them."""

# The first message of a prompt that asks for the answer itself.
DIRECT = "system:direct"
# The reply of a model that cannot answer.
CANNOT = "CANNOT"
_DIRECT = f"""\
You are given data and a task. Reply with the answer to the task and nothing else: exactly what is \
asked for, no explanation. If the data cannot answer it by reading alone, reply {CANNOT}."""

# Without a text, an answer that the model does not know can only be computed.
_DIRECT_WITHOUT_TEXT = """\
Reply with the answer to the task and nothing else: exactly what is asked for, no explanation. If \
it has to be computed, reply with one ```python block that prints it; it is run, and you see what \
it printed."""

# Only for runs whose answer has to fit a schema.
_TYPED = "The answer is a JSON value. Call FINAL with a dict, list, number or text that fits this \
JSON schema:"
_TYPED_DIRECT = "Reply with a JSON value and nothing else. It has to fit this JSON schema:"
_SCHEMA_CHARS_MAX = 4_000

# Only for recursive runs.
_RECURSIVE = """\
What code cannot decide, programs ask a model: to read or classify text. llm_query(prompt) \
returns text; llm_query_batched(prompts, schema=bool) a list (bool, int, list[str]), 1 MB at \
most. rlm_query(task, text), rlm_query_batched(tasks, texts) give a part to programs of its own. \
Select by code first, ask for short answers, heed budget.remaining()."""
_EXAMPLE = """\
```python
{pieces}
found = llm_query_batched([f"About a delay? {{p}}" for p in pieces[:40]], schema=bool)
print([p[:80] for p, yes in zip(pieces, found) if yes is True])
```"""
_PIECE_CHARS = 8_000


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """A picture in a prompt: its media type and its bytes, or a reference to them.

    Records and prompts have the reference; the bytes are read when the request is sent.
    """

    media_type: str
    data: bytes = b""
    ref: AttachmentRef | None = None

    @property
    def sha256(self) -> str:
        """The digest of the bytes."""
        return self.ref.id if self.ref is not None else digest(self.data)


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a prompt. `part` names the record it was made from."""

    role: Literal["system", "user", "assistant"]
    part: str
    text: str
    images: tuple[Image, ...] = ()


def opening(started: RunStarted) -> tuple[Message, ...]:
    """Return the fixed part and the task, with the request for code last.

    They are two messages, `system` and `task`. Runs of the previous prompts get those.
    """
    # What differs least from run to run comes first, so that servers can cache it. The time and the
    # task come late, and what to do now is the last thing that a model reads.
    system = _WASM_SYSTEM if started.backend == "wasm" else native_system(started)
    if started.strategy == "recursive":
        system = f"{system}\n\n{_recursive(started)}"
    listed = "\n".join(
        _function_line(name, doc)
        for name, doc in started.functions
        if not name.startswith(_TOLD_LATER)
    )
    if listed and is_older(started):
        system = f"{system}\n\nFunctions you can call:\n{listed}"
    elif listed:
        system = f"{system}\n\n{_FUNCTIONS}\n{listed}{_sample_calls(started)}"
    if started.skills is not None and started.skills.rendered:
        system = f"{system}\n\n{started.skills.rendered}"
    system = _with_instructions(system, started)
    data = "\n\n".join(each.sample for each in started.contexts)
    said = [f"The data:\n{data}"] if data else []
    said += [passages] if (passages := passages_shown(started)) else []
    if started.images:
        said.append(f"The pictures: {', '.join(map(_picture, started.images))}.")
    said += _user_skills(started, files=True)
    if started.session is not None:
        said += [each for each in (started.session.has, started.session.told) if each]
    said += _time(started)
    said.append(f"The task: {started.goal}")
    if started.schema is not None:
        said.append(f"{_TYPED}\n{_schema_excerpt(started.schema)}")
    if started.skills is not None and started.skills.begin:
        said.append(f"Look for instructions first:\n```python\n{started.skills.begin}\n```")
    if started.memory is not None and started.memory.begin:
        said.append(f"Look into the memory first:\n```python\n{started.memory.begin}\n```")
    said.append(WRITE)
    return (
        Message(role="system", part="system", text=system),
        Message(role="user", part="task", text="\n\n".join(said), images=_images(started)),
    )


def _with_instructions(system: str, started: RunStarted) -> str:
    """Return the fixed part of a prompt with the caller's instructions at its end, if there are."""
    told = started.instructions
    return f"{system}\n\nInstructions:\n{told}" if isinstance(told, str) else system


def tools(started: RunStarted) -> tuple[tuple[str, str], ...]:
    """Return the functions that the caller gave the run, each with its description.

    Functions of the runtime (`outputs`, `llm_query`, `rlm_query`, `budget`, `skills`), of
    attachments and, in a run with a memory, of the memory are left out.
    """
    remembers = _OF_MEMORY if started.memory is not None else frozenset()
    return tuple(
        (name, doc)
        for name, doc in started.functions
        if not name.startswith((*_TOLD_LATER, "attachments.")) and name not in remembers
    )


def _sample_calls(started: RunStarted) -> str:
    """Return a paragraph with a fenced program that calls up to three tools.

    They are the first whose signature can be read; "" if there is none. Arguments are the names of
    the parameters.
    """
    # A weak model runs what it is shown. With values in it, that could have an effect; a name that
    # stands for no value fails first.
    calls = [call for name, doc in tools(started) if (call := _sample_call(name, doc))]
    shown = "\n".join(f"print({call})" for call in calls[:_SAMPLES_MAX])
    return f"\nThey are called like this:\n```python\n{shown}\n```" if shown else ""


def _sample_call(name: str, doc: str) -> str | None:
    """Return a call with the required arguments, or None if the signature cannot be read."""
    head = doc.partition("\n")[0]
    if not head.startswith(f"{name}("):
        return None
    made = tree_of(f"def _{head.removeprefix(name)}: ...")
    function = made.body[0] if made is not None and made.body else None
    if not isinstance(function, ast.FunctionDef):
        return None
    given = function.args
    placed = [*given.posonlyargs, *given.args]
    needed = [each.arg for each in placed[: len(placed) - len(given.defaults)]]
    named = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    needed += [f"{each.arg}={each.arg}" for each, default in named if default is None]
    return f"{name}({', '.join(needed)})"


def _recursive(started: RunStarted) -> str:
    """Return the paragraph about asking models. With rows or records, the data has the example."""
    if any(each.kind in ("table", "json_lines") for each in started.views):
        return _RECURSIVE
    return f"{_RECURSIVE}\n\n{_EXAMPLE.format(pieces=_pieces(started))}"


def _pieces(started: RunStarted) -> str:
    """Return a line that cuts the first text of this run into pieces, or two invented ones."""
    kept = [(each.name, each.key) for each in started.texts]
    kept += [(each.name, each.key) for each in started.inputs]
    if not kept:
        return 'pieces = ["a text", "another text"]'
    name, size = kept[0][0], _PIECE_CHARS
    several = any(key is not None for each, key in kept if each == name)
    text = "text" if several else name
    each = f"for text in {name}.values() " if several else ""
    if started.texts:
        return f"pieces = [p {each}for p in {text}.chunks({size})]"
    return f"pieces = [{text}[i:i+{size}] {each}for i in range(0, len({text}), {size})]"


def direct(started: RunStarted, texts: Sequence[str]) -> tuple[Message, ...]:
    """Return a prompt with the texts in it whole, which asks for the answer itself.

    `texts` are those of `started.files`, in that order. It is two messages, as in `opening`.
    """
    said = [
        f"--- {name!r} ---\n{text}"
        if variable == "context"
        else f"--- {variable}: {name!r} ---\n{text}"
        for (name, variable, _), text in zip(started.files, texts, strict=False)
    ]
    if started.images:
        said.append(f"The pictures: {', '.join(map(_picture, started.images))}.")
    said += _user_skills(started)
    if started.session is not None and started.session.told:
        said.append(started.session.told)
    said += _time(started)
    said.append(f"The task: {started.goal}")
    if started.schema is not None:
        said.append(f"{_TYPED_DIRECT}\n{_schema_excerpt(started.schema)}")
    system = _DIRECT
    if not started.files and not is_older(started):
        system = _DIRECT_WITHOUT_TEXT
    system = _with_instructions(system, started)
    return (
        Message(role="system", part=DIRECT, text=system),
        Message(role="user", part="task:direct", text="\n\n".join(said), images=_images(started)),
    )


def has_nothing_to_read(started: RunStarted) -> bool:
    """Return True if a program of this run would find nothing.

    Such a run is no native one, and has no data, tools, skills, memory, session or vocabulary.
    """
    return (
        started.backend == "wasm"
        and not (started.files or started.texts or started.inputs or started.values)
        and all(name.startswith(_TOLD_LATER) for name, _ in started.functions)
        and started.skills is None
        and started.memory is None
        and started.session is None
        and started.vocabulary is None
    )


def is_older(started: RunStarted) -> bool:
    """Return True for a run of the previous prompts, which a replay has to compute as they were."""
    return started.template == _WITHOUT_TIME


def has_aid(started: RunStarted, aid: str) -> bool:
    """Return True if a run has this help for weak models, one of `AIDS`. Older runs have none."""
    if started.template in (_WITHOUT_TIME, _WITHOUT_AIDS):
        return False
    return aid in (AIDS if started.aids is msgspec.UNSET else started.aids)


def passages_shown(started: RunStarted) -> str:
    """Return the passages of the data that a run was shown for its task; "" if there are none."""
    found = [each.near for each in started.contexts if each.near is not msgspec.UNSET]
    return "\n\n".join(found)


def _time(started: RunStarted) -> list[str]:
    """Return the time to the minute, for a place next to the task.

    Everything before that place stays the same from run to run, so that it can be cached.
    """
    return [] if is_older(started) else [clock_sentence(started.clock)]


def _user_skills(started: RunStarted, *, files: bool = False) -> list[str]:
    """Return the instructions that the user put first, a text for each skill.

    With `files`, programs read them, and are shown how to reach the files of each skill.
    """
    said = []
    for each in () if started.skills is None else started.skills.put:
        told = skill_files_text(each.id, each.files) if files else ""
        text = f"Instructions to follow (skill {each.id!r}):\n{each.text}"
        said.append(f"{text}\n{told}" if told else text)
    return said


def _schema_excerpt(schema: str) -> str:
    """Return a schema, or the beginning of a very long one.

    If an answer breaks a rule that was left out, the model gets the problem in a line.
    """
    cut = schema[:_SCHEMA_CHARS_MAX]
    return cut if cut == schema else f"{cut} ... (and {len(schema) - len(cut):,} characters more)"


def _images(started: RunStarted) -> tuple[Image, ...]:
    return tuple(Image(media_type=each.media_type, ref=each) for each in started.images)


def _picture(ref: AttachmentRef) -> str:
    size = f" ({ref.width} x {ref.height})" if ref.width and ref.height else ""
    return f"{ref.label or ref.id[:12]}{size}"


WRITE = "Write one ```python block."
ANSWER_NOW = (
    "This is your last turn. Write one ```python block that calls FINAL(...) with your answer."
)
REPEATED = (
    "You ran this program before and it gave the same result. If the result is the answer, reply "
    "with a block that only calls FINAL(...) with it. If not, write a different program."
)


def failed_again(failure: ProgramFailure, *, part: str) -> Message:
    """Return the message about a program that fails as the one before it: with the line's values.

    The traceback was shown before, and did not help.
    """
    told = "" if failure.line is msgspec.UNSET else cut(failure.line, _LINE_CHARS_MAX)
    line, _, values = told.partition("\n")
    error = cut(f"{failure.kind}: {failure.message}", _LINE_CHARS_MAX)
    return Message(
        role="user",
        part=part,
        text=f"The same line failed again, with {error}\n    {line}\nThe values there:\n{values}"
        "\n\nWrite the whole block again, with that line changed so that it works with these "
        "values.",
    )


def _function_line(name: str, doc: str) -> str:
    """Return a function's signature, or else `name(...)`, and one line of its description."""
    lines = [line.strip() for line in doc.splitlines() if line.strip()]
    head = lines[0] if lines and lines[0].startswith(f"{name}(") else f"{name}(...)"
    rest = lines[1:] if lines and lines[0].startswith(f"{name}(") else lines
    return f"- {head}: {rest[0]}" if rest else f"- {head}"


def rebound_tools(source: str, started: RunStarted) -> tuple[str, ...]:
    """Return the names of tools that a program binds to something of its own, each once.

    Of a tool `mail.send` that is `mail`. None of a run of the previous prompts, or of a program
    that cannot be parsed.
    """
    roots = _roots(started)
    tree = tree_of(source) if roots and not is_older(started) else None
    made = [name for each in tree.body for name in names_bound(each)] if tree is not None else []
    return tuple(dict.fromkeys(name for name in made if name in roots))


def _roots(started: RunStarted) -> frozenset[str]:
    return frozenset(name.partition(".")[0] for name, _ in tools(started))


def observation(
    result: ProgramFinished,
    *,
    part: str,
    started: RunStarted,
    notes: tuple[str, ...] = (),
    rebound: tuple[str, ...] = (),
    told: tuple[str, ...] = (),
) -> Message:
    """Return the message about the result of a program, with what to do next at the end.

    `rebound` are tools whose names the program took for something else, `told` those of the program
    before it. Their names were back when this one began, and the model knows. With `notes`, those
    come last and take the place of the request to answer.
    """
    said = [_body(result)]
    if result.names_kept:
        names = _name_list(result.names_kept)
        said.append(f"Your assignment to {names} was left out: it holds the data already.")
    back = tuple(each for each in result.names_restored if each not in told)
    if rebound:
        names = _name_list(rebound)
        said.append(
            f"Your program put something of its own in the place of {names}. What was there is "
            "back: call it, do not define it."
        )
    if back:
        names = _name_list(back)
        said.append(
            f"Your program had rebound {names}; these names are the run's own and are back."
        )
    if result.stop == ABANDONED:
        said.append("Look at what is there, and write the next block.")
    elif result.failure is not None:
        hint = advice(result.failure, started)
        said += [hint] if hint else []
        said.append("Write the whole block again, corrected.")
    elif not notes:
        said.append(
            f"If this answers the task ({cut(started.goal, _GOAL_CHARS_MAX)!r}), reply with a "
            "block that calls FINAL(...) with the answer. If not, write the next block."
        )
    said.extend(notes)
    return Message(role="user", part=part, text="\n\n".join(each for each in said if each))


def nudge(problem: str, started: RunStarted, *, partial: str | None, part: str) -> Message:
    """Return the message to a reply without action: the problem, where the data is, what to do."""
    shown = f"\n\nThe last result was:\n{partial}" if partial else ""
    names = data_names(started)
    held = ", ".join(f"`{name}`" for name in names)
    data = f" The data is in {held}: use it, do not type it in." if names else ""
    return Message(role="user", part=part, text=f"{problem}.{data}{shown}\n\n{WRITE}")


def output(result: ProgramFinished, *, part: str) -> Message:
    """Return a message with the result of a program, and no advice."""
    return Message(role="user", part=part, text=_body(result))


def _name_list(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in dict.fromkeys(names))


def _body(result: ProgramFinished) -> str:
    """Return the result of a program as text: what it printed, how it failed, or its value.

    Long parts are cut. A program without any of it gives a sentence, or what its last line
    assigned. The result of a shell command has another form.
    """
    # A program that was given up has no output on record: its message says all that is known.
    if result.stop == ABANDONED and result.failure is not None:
        return result.failure.message
    if isinstance(result.exit_code, int):
        return _shell_body(result, result.exit_code)
    blocks = []
    if result.stdout.strip():
        blocks.append(f"Output:\n{cut(result.stdout, _OUTPUT_CHARS_MAX)}")
    if result.stderr.strip():
        blocks.append(f"Errors printed:\n{cut(result.stderr, _ERROR_CHARS_MAX)}")
    if result.failure is not None:
        shown = result.failure.traceback or f"{result.failure.kind}: {result.failure.message}"
        blocks.append(f"The program failed:\n{cut(shown, _ERROR_CHARS_MAX)}")
        if result.stop != "finished":
            blocks.append(
                f"It was stopped ({result.failure.message}); your variables are as before it."
            )
    elif result.value is not None:
        blocks.append(f"Value of the last line: {cut(result.value, _OUTPUT_CHARS_MAX)}")
    if not blocks and result.assigned is not None:
        name, value = result.assigned
        return f"The program printed nothing. {name} is {cut(value, _OUTPUT_CHARS_MAX)}"
    if not blocks:
        return "The program ran and printed nothing. Print what you want to see."
    return "\n".join(blocks)


def _shell_body(result: ProgramFinished, exit_code: int) -> str:
    """Return the result of a command of the shell as text, with its exit code on the last line."""
    blocks = []
    if result.stdout.strip():
        blocks.append(f"stdout:\n{cut(result.stdout, _OUTPUT_CHARS_MAX)}")
    if result.stderr.strip():
        blocks.append(f"stderr:\n{cut(result.stderr, _ERROR_CHARS_MAX)}")
    if result.failure is not None:
        how = "did not run" if result.stop == "finished" else "was stopped"
        blocks.append(f"It {how} ({result.failure.message}).")
    return "\n".join([*blocks, f"exit_code: {exit_code}"])


def last_value(result: ProgramFinished) -> str | None:
    """Return what the model was last shown, in at most about 4,000 characters.

    It is the value, else what was printed, else what the last line assigned. None if the program
    failed or showed nothing.
    """
    if result.failure is not None:
        return None
    shown = result.value if result.value is not None else result.stdout.strip()
    if not shown and result.assigned is not None:
        shown = result.assigned[1]
    return cut(shown, _OUTPUT_CHARS_MAX) or None


def cut(text: str, chars_max: int) -> str:
    """Keep head and tail of a long text, and say between them how to see the rest.

    `chars_max` is without that line. Line ends at the end of the text are left out in any case.
    """
    text = text.rstrip("\n")
    if len(text) <= chars_max:
        return text
    half = chars_max // 2
    left_out = len(text) - 2 * half
    return (
        f"{text[:half]}\n[... {left_out:,} characters left out; keep it in a variable and print "
        f"a part ...]\n{text[-half:]}"
    )


def request_digest(
    model: str,
    messages: tuple[Message, ...],
    *,
    tokens_out_max: int,
    temperature: float | None,
) -> str:
    """Return the digest of the whole request as it is sent. Pictures count by their digests."""
    said = [
        [each.role, each.text, [[image.media_type, image.sha256] for image in each.images]]
        for each in messages
    ]
    heat = None if temperature is None else repr(float(temperature))
    return digest(canonical([model, said, tokens_out_max, heat]))
