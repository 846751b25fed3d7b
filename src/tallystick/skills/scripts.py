"""Run the scripts of skills, each by itself in a sandbox of its own.

A skill comes from somebody else. Its script sees the skill's own files and none of the run's
variables. Of the run's functions it sees those that the allowed tools of its skill name, or of any
skill that was loaded before; if they name none, it gets none. The run pays for what it uses: its
calls count with those of the program, each under a key of its own.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.core.budget.amount import Amount
from tallystick.core.clock import FIXED_CLOCK_NS
from tallystick.core.errors import UsageError
from tallystick.core.json_text import digest
from tallystick.core.machine.state import allows
from tallystick.runtime.calls.approvals import script_refusal
from tallystick.runtime.calls.functions import RunFunction, under_key
from tallystick.runtime.calls.scope import Call
from tallystick.sandbox.host import Blocking, HostFunction, HostTable, error_reply
from tallystick.sandbox.output import remove_output
from tallystick.sandbox.port import (
    ExecutionContext,
    ExecutionResult,
    HostCall,
    HostNames,
    Limits,
)
from tallystick.skills.errors import (
    SkillNotFound,
    SkillPathRefused,
    SkillUnreadable,
    SkillUntrusted,
)
from tallystick.storage.clock import new_id

if TYPE_CHECKING:
    from tallystick.sandbox.wasm.sandbox import WasmSandbox
    from tallystick.skills.layers import Skill
    from tallystick.skills.skills import Skills

_SCRIPT_BYTES_MAX = 1_000_000
_FILES_BYTES_MAX = 4_000_000
_FILES_MAX = 500
_OUTPUT_BYTES_MAX = 1_000_000
_SCRIPT_MS_MAX = 30_000
_EXIT_MAX = 2**31
# Names of our own calls and values. A script may find them, but gains nothing by using them.
_RETURNED, _EXIT, _JOB, _FILES = (
    f"_tallystick_{each}" for each in ("returned", "exit", "job", "files")
)
# The sandbox counts our own calls, too, so its limit has room for some of them.
_OUR_CALLS_MAX = 10

# Runs in the guest. The script's namespace has the functions that it may call, but not our names.
_RUNNER = '''
import importlib.util as _util, io as _io, json as _json, sys as _sys

class _Modules:
    """Python files beside the script, by their names."""

    def __init__(self, files, folder):
        self.files, self.folder = files, folder

    def find_spec(self, name, path=None, target=None):
        place = self.folder + name.replace(".", "/")
        for file, package in ((place + ".py", False), (place + "/__init__.py", True)):
            if file in self.files:
                source = _Source(self.files[file], file)
                return _util.spec_from_loader(name, source, is_package=package)

class _Source:
    def __init__(self, text, file):
        self.text, self.file = text, file

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        exec(compile(self.text, self.file, "exec"), module.__dict__)

def _started(job):
    path, function = job["path"], job["function"]
    _sys.meta_path.append(_Modules(_tallystick_files, path[: path.rfind("/") + 1]))
    _sys.argv = [path, *job["argv"]]
    _sys.stdin = _io.StringIO(job["stdin"])
    own = {name: globals()[name] for name in job["names"]}
    own["__name__"] = "__main__" if function is None else "skill"
    own["__file__"] = path
    try:
        exec(compile(job["source"], path, "exec"), own)
        if function is not None:
            made = own[function](*job["args"], **job["kwargs"])
            _tallystick_returned(_json.dumps(made, allow_nan=False))
    except SystemExit as error:
        code = error.code
        if code is not None and not isinstance(code, int):
            print(code, file=_sys.stderr)
            code = 1
        _tallystick_exit(int(code or 0))

_started(_tallystick_job)
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptResult:
    """The outcome of a script. `value` is JSON text, if a function was called and returned."""

    stdout: str
    stderr: str
    exit: int
    value: str | None
    sha256: str
    fuel: int
    host_calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The work of a script: the whole file with its arguments, or a function in it."""

    path: str
    argv: Sequence[str] = ()
    stdin: str = ""
    function: str | None = None
    args: Sequence[object] = ()
    kwargs: Mapping[str, object] | None = None


class Scripts:
    """Runs scripts for the programs of one run. `functions` returns the run's functions."""

    def __init__(
        self,
        sandbox: Callable[[], WasmSandbox],
        functions: Callable[[], Sequence[RunFunction]],
        *,
        granted: Sequence[str] = (),
        seed: int = 0,
        clock_ns: int = FIXED_CLOCK_NS,
        spend: Callable[[Amount], None] = lambda amount: None,
    ) -> None:
        self._sandbox = sandbox
        self._functions = functions
        self._granted = frozenset(granted)
        self._seed = seed
        self._clock_ns = clock_ns
        self._spend = spend

    @property
    def has_effects(self) -> bool:
        """True if a script could do something that must not happen twice."""
        return any(each.policy == "effect" for each in self._functions())

    async def run(self, skills: Skills, skill: Skill, job: Job, call: Call) -> ScriptResult:
        """Run one script to its end and return its outcome; a failure of the script is one, too.

        The error is then at the end of `stderr`, and there is no value. Its time is limited to 30
        seconds and to what the run of `call` has left. Its host calls are taken off those that the
        program has left, and they and its fuel are charged to the run.

        Raise `SkillPathRefused` if the file is not Python, or `SkillNotFound`, `SkillPathRefused`,
        `SkillUnreadable` or `SkillUntrusted` if it cannot be read. Errors of the sandbox are passed
        on, and then nothing is charged.
        """
        raw = skills.read(skill, job.path, bytes_max=_SCRIPT_BYTES_MAX)
        if not job.path.endswith(".py"):
            why = "is no Python file; only those are run"
            raise SkillPathRefused(id=skill.id, path=job.path, why=why)
        files = text_files(skills, skill)
        outcome = _Outcome()
        tools = self._tools(skill, call)
        own = [
            HostFunction(name=_RETURNED, function=outcome.set_value, local=True),
            HostFunction(name=_EXIT, function=outcome.set_exit, local=True),
        ]
        table = HostTable([*own, *(each.hosted() for each in tools)], granted=self._granted)
        values: dict[str, object] = {
            _FILES: files,
            _JOB: {
                "path": job.path,
                "source": raw.decode("utf-8", "replace"),
                "argv": list(job.argv),
                "stdin": job.stdin,
                "function": job.function,
                "args": list(job.args),
                "kwargs": dict(job.kwargs or {}),
                "names": sorted({each.name.partition(".")[0] for each in tools}),
            },
        }
        # Calls of the program are numbered from 0: this one and those before it are already used.
        calls_max = call.scope.host_calls_left - (call.index + 1)
        host = _ScriptHost(table, values, files, calls_max=calls_max, call=call, tools=tools)
        result = await self._execute(host, call.scope.times.ends_at)
        call.scope.host_calls_left -= host.calls
        self._spend(Amount(fuel=result.charge.fuel, host_calls=host.calls))
        error = "" if result.error is None else result.error.traceback or result.error.message
        failed = result.error is not None
        return ScriptResult(
            stdout=result.stdout,
            stderr="\n".join(each for each in (result.stderr, error) if each),
            exit=outcome.exit or int(failed),
            # A value that was reported before the failure is not what the function returned.
            value=None if failed else outcome.value,
            sha256=digest(raw),
            fuel=result.charge.fuel,
            host_calls=host.calls,
        )

    def _tools(self, skill: Skill, call: Call) -> list[RunFunction]:
        """Return the run's functions that are allowed by name and granted to the run.

        The names are those of this skill, and of skills that the run loaded before.
        """
        allowed = (skill.card.allowed_tools or (), *call.scope.tools)
        return [
            each
            for each in self._functions()
            if allows(allowed, each.name) and (not each.needs or each.needs in self._granted)
        ]

    async def _execute(self, host: _ScriptHost, ends_at: float) -> ExecutionResult:
        left_ms = max(0, min(_SCRIPT_MS_MAX, round(1000 * (ends_at - time.monotonic()))))
        context = ExecutionContext(
            session_id=new_id(),
            timeout_ms=left_ms,
            deadline_ms=left_ms,
            max_output_bytes=_OUTPUT_BYTES_MAX,
            limits=Limits(
                output_bytes=_OUTPUT_BYTES_MAX, host_calls=host.calls_max + _OUR_CALLS_MAX
            ),
            program_name="<skill>",
        )
        session = await self._sandbox().open(
            session_id=context.session_id, seed=self._seed, clock_ns=self._clock_ns
        )
        try:
            result = await session.execute(_RUNNER, context=context, host=host)
        finally:
            await session.close()
        _discard(result)
        return result


def _discard(result: ExecutionResult) -> None:
    """Remove the files with what was printed beyond the limit."""
    for path in (result.output_file_path, result.metadata.get("stderr_file_path")):
        if isinstance(path, str):
            remove_output(Path(path))


# A file that is not text, has gone, may not be read, or is not the one that was trusted.
_PASSED_OVER = (
    UnicodeDecodeError, SkillNotFound, SkillPathRefused, SkillUnreadable, SkillUntrusted,
)  # fmt: skip


class _Outcome:
    """The result that a script reports. The last report counts."""

    def __init__(self) -> None:
        self.value: str | None = None
        self.exit: int | None = None

    def set_value(self, value: object) -> None:
        """Keep the JSON text that a function returned; None for anything but text."""
        self.value = value if isinstance(value, str) else None

    def set_exit(self, code: object) -> None:
        """Keep the exit code. One that is no 32-bit number counts as 1."""
        is_code = isinstance(code, int) and -_EXIT_MAX <= code < _EXIT_MAX
        self.exit = int(code) if isinstance(code, int) and is_code else 1


class _ScriptHost:
    """A host table whose program also finds values, and files that it can open.

    Calls beyond `calls_max` are refused; our own do not count. Each has a key made of that of
    `call`, which runs the script, and its number.
    """

    def __init__(
        self,
        table: HostTable,
        values: Mapping[str, object],
        files: Mapping[str, str],
        *,
        calls_max: int,
        call: Call,
        tools: Sequence[RunFunction],
    ) -> None:
        self._table = table
        self._tools = {each.name: each for each in tools}
        self._call = call
        self.calls_max = max(0, calls_max)
        self.calls = 0
        self.names = HostNames(
            key=new_id(),
            functions=table.names.functions,
            values=values,
            files=tuple((path, _FILES, path) for path in files),
        )

    def serve(self, call: HostCall) -> bytes | Awaitable[bytes]:
        """Return the reply to a call of the script, or an awaitable of it, and count the call.

        Beyond `calls_max`, the reply is an error. What ends the script does not count.
        """
        if call.name in (_RETURNED, _EXIT):
            return self._table.serve(call)
        if self.calls >= self.calls_max:
            return error_reply(UsageError("host_calls: all that the run has are used"))
        tool = self._tools.get(call.name)
        refused = None if tool is None else script_refusal(tool, call.request)
        if refused is not None:
            return error_reply(refused)
        key = f"{self._call.name_outside}.{self.calls}"
        self.calls += 1
        with self._under(key):
            reply = self._table.serve(call, self._call.inside(key))
        if isinstance(reply, Blocking):
            return Blocking(lambda: self._run_under(key, reply))
        return reply if isinstance(reply, bytes) else self._await_under(key, reply)

    def _under(self, key: str) -> AbstractContextManager[None]:
        return under_key(key, depth=self._call.scope.depth)

    def _run_under(self, key: str, work: Blocking) -> bytes:
        with self._under(key):
            return work()

    async def _await_under(self, key: str, reply: Awaitable[bytes]) -> bytes:
        with self._under(key):
            return await reply


def text_files(skills: Skills, skill: Skill) -> dict[str, str]:
    """Return the text files of a skill by path: of the first 500, those that fit into 4 MB.

    One that cannot be read is passed over. Raise the errors of `Folder.files`.
    """
    found: dict[str, str] = {}
    room = _FILES_BYTES_MAX
    for each in skill.folder.files()[:_FILES_MAX]:
        if each.bytes > room:
            continue
        try:
            data = skills.read(skill, each.path, bytes_max=room)
            found[each.path] = data.decode("utf-8")
        except _PASSED_OVER:
            continue
        room -= len(data)
    return found
