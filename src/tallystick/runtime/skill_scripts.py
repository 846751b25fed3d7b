"""Scripts of skills, each run by itself in a sandbox of its own.

A skill comes from somebody else. Its script sees the skill's own files and none of the run's
variables, and of the run's functions only those that the skill's allowed tools name: one that names
none gets none. What it uses is the run's to pay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tallystick.core.budget_amount import Amount
from tallystick.core.canonical import digest
from tallystick.core.skill_state import allows
from tallystick.runtime.functions import RunFunction
from tallystick.runtime.skills import Skills
from tallystick.sandbox.host import HostFunction, HostTable
from tallystick.sandbox.identity import new_id
from tallystick.sandbox.port import ExecutionContext, ExecutionResult, HostNames, Limits
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.skills.errors import SkillNotFound, SkillPathRefused, SkillUntrusted
from tallystick.skills.layers import Skill

__all__ = ["Job", "ScriptResult", "Scripts"]

_SCRIPT_BYTES_MAX = 1_000_000
_FILES_BYTES_MAX = 4_000_000
_FILES_MAX = 500
_OUTPUT_BYTES_MAX = 1_000_000
_SCRIPT_MS_MAX = 30_000
_OURS = frozenset({"skill_returned", "skill_exit"})

# Runs in the guest. The script's namespace has the functions that it may call and nothing of ours.
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

def _started():
    path = skill_job["path"]
    _sys.meta_path.append(_Modules(skill_files, path[: path.rfind("/") + 1]))
    _sys.argv = [path, *skill_job["argv"]]
    _sys.stdin = _io.StringIO(skill_job["stdin"])
    own = {name: globals()[name] for name in skill_job["names"]}
    own["__name__"] = "__main__" if skill_job["function"] is None else "skill"
    own["__file__"] = path
    try:
        exec(compile(skill_job["source"], path, "exec"), own)
        if skill_job["function"] is not None:
            made = own[skill_job["function"]](*skill_job["args"], **skill_job["kwargs"])
            skill_returned(_json.dumps(made))
    except SystemExit as error:
        code = error.code
        if code is not None and not isinstance(code, int):
            print(code, file=_sys.stderr)
            code = 1
        skill_exit(code or 0)

_started()
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptResult:
    """What came of a script: `value` is JSON text, of a function that was called."""

    stdout: str
    stderr: str
    exit: int
    value: str | None
    sha256: str
    fuel: int
    host_calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to run: a script with its arguments, or a function in it."""

    path: str
    argv: Sequence[str] = ()
    stdin: str = ""
    function: str | None = None
    args: Sequence[object] = ()
    kwargs: Mapping[str, object] | None = None


class Scripts:
    """Runs scripts for the programs of one run."""

    def __init__(
        self,
        sandbox: Callable[[], WasmSandbox],
        functions: Sequence[RunFunction],
        *,
        granted: Sequence[str] = (),
        seed: int = 0,
        spend: Callable[[Amount], None] = lambda amount: None,
    ) -> None:
        self._sandbox = sandbox
        self._functions = tuple(functions)
        self._granted = frozenset(granted)
        self._seed = seed
        self._spend = spend
        # When the run's time is over, as the loop's clock says; and the calls that it has left.
        self.ends_at = float("inf")
        self.host_calls_left = Limits().host_calls

    @property
    def has_effects(self) -> bool:
        """Whether a script could do something that must not happen twice."""
        return any(each.policy == "effect" for each in self._functions)

    async def run(self, skills: Skills, skill: Skill, job: Job) -> ScriptResult:
        """Run one script to its end, by its own fault or not."""
        raw = skills.read(skill, job.path, bytes_max=_SCRIPT_BYTES_MAX)
        if not job.path.endswith(".py"):
            why = "is no Python file; only those are run"
            raise SkillPathRefused(id=skill.id, path=job.path, why=why)
        files = _texts(skills, skill)
        returned: list[str] = []
        exits: list[object] = []
        tools = self._tools(skill)
        own = [
            HostFunction(name="skill_returned", function=returned.append, local=True),
            HostFunction(name="skill_exit", function=exits.append, local=True),
        ]
        table = HostTable([*own, *(each.hosted() for each in tools)], granted=self._granted)
        values: dict[str, object] = {
            "skill_files": files,
            "skill_job": {
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
        result = await self._executed(table, values, files)
        charge = result.charge
        inner = sum(each.name not in _OURS for each in result.calls)
        self._spend(Amount(fuel=charge.fuel, host_calls=inner))
        error = "" if result.error is None else result.error.traceback or result.error.message
        code = exits[-1] if exits else int(result.error is not None)
        return ScriptResult(
            stdout=result.stdout,
            stderr="\n".join(each for each in (result.stderr, error) if each),
            exit=code if isinstance(code, int) else 1,
            value=returned[-1] if returned else None,
            sha256=digest(raw),
            fuel=charge.fuel,
            host_calls=inner,
        )

    def _tools(self, skill: Skill) -> list[RunFunction]:
        """The functions of the run that the skill names, as far as the run was granted them."""
        allowed = skill.card.allowed_tools or ()
        return [
            each
            for each in self._functions
            if allows((allowed,), each.name) and (not each.needs or each.needs in self._granted)
        ]

    async def _executed(
        self, table: HostTable, values: Mapping[str, object], files: Mapping[str, str]
    ) -> ExecutionResult:
        left_ms = max(0, min(_SCRIPT_MS_MAX, round(1000 * (self.ends_at - time.monotonic()))))
        context = ExecutionContext(
            session_id=new_id(),
            timeout_ms=left_ms,
            deadline_ms=left_ms,
            max_output_bytes=_OUTPUT_BYTES_MAX,
            limits=Limits(output_bytes=_OUTPUT_BYTES_MAX, host_calls=max(2, self.host_calls_left)),
            program_name="<skill>",
        )
        session = await self._sandbox().open(session_id=context.session_id, seed=self._seed)
        try:
            result = await session.execute(
                _RUNNER, context=context, host=_Named(table, values, files)
            )
        finally:
            await session.close()
        _discard(result)
        return result


def _discard(result: ExecutionResult) -> None:
    """What was printed beyond the limit is not kept."""
    for path in (result.output_file_path, result.metadata.get("stderr_file_path")):
        if isinstance(path, str):
            Path(path).unlink(missing_ok=True)


class _Named:
    """A table whose program also finds values, and files that it can open."""

    def __init__(
        self, table: HostTable, values: Mapping[str, object], files: Mapping[str, str]
    ) -> None:
        self.serve = table.serve
        self.names = HostNames(
            key=new_id(),
            functions=table.names.functions,
            values=values,
            files=tuple((path, "skill_files", path) for path in files),
        )


def _texts(skills: Skills, skill: Skill) -> dict[str, str]:
    """The text files of a skill, as many as there is room for in a sandbox."""
    found: dict[str, str] = {}
    room = _FILES_BYTES_MAX
    for each in skill.folder.files()[:_FILES_MAX]:
        if each.bytes > room:
            continue
        try:
            found[each.path] = skills.read(skill, each.path, bytes_max=room).decode("utf-8")
        except (UnicodeDecodeError, SkillNotFound, SkillPathRefused, SkillUntrusted):
            continue
        room -= each.bytes
    return found
