"""`tally exec`: run a program in the sandbox, and show its output and what it used."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from tallystick.cli.exit_codes import exit_code_of_result
from tallystick.cli.options import with_backend
from tallystick.cli.parts import JSON, echo_json
from tallystick.cli.progress import Sayer
from tallystick.core.errors import InvalidName, UsageError, system_errors
from tallystick.runtime.programs.backends import Backends, read_preference
from tallystick.runtime.run.clock import run_clock
from tallystick.sandbox.host import HostTable
from tallystick.sandbox.port import (
    ExecutionContext,
    ExecutionResult,
    Limits,
    SandboxInterpreter,
)
from tallystick.sandbox.text import HostText
from tallystick.sandbox.wasm.sandbox import WasmInterpreter, WasmSandbox
from tallystick.settings.paths import cache_directory, data_directory, ledger_path
from tallystick.storage.clock import new_id

if TYPE_CHECKING:
    from tallystick.sandbox.process.sandbox import ProcessSandbox
    from tallystick.sessions.exec_sessions import HeldSession

_MIB = 1024 * 1024
_DEFAULTS = Limits()
# Options that the process sandbox cannot honour, by the name of their parameter.
_WASM_ONLY = {"session": "--session", "fuel": "--fuel", "clock": "--clock", "wheels": "--wheel"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A program with everything that the command line says about how to run it."""

    program: bytes
    context: ExecutionContext
    texts: dict[str, Path]
    wheels: tuple[Path, ...]
    session: HeldSession | None
    seed: int
    clock_ns: int
    backend: str
    accept_without: tuple[str, ...]


@click.command("exec")
@click.argument("program", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@with_backend
@click.option("--session", metavar="NAME", help="Keep the variables under NAME for the next call.")
@click.option(
    "--fuel",
    type=int,
    default=_DEFAULTS.fuel,
    show_default=True,
    metavar="N",
    help="Stop the program after N instructions of the sandbox (fuel).",
)
@click.option(
    "--memory-mb",
    type=int,
    default=_DEFAULTS.memory_bytes // _MIB,
    show_default=True,
    metavar="N",
    help="Give the interpreter at most N MiB of memory; in the process sandbox, all its processes "
    "together.",
)
@click.option(
    "--wall-ms",
    type=int,
    default=30_000,
    show_default=True,
    metavar="N",
    help="Stop the program after it was active for N milliseconds.",
)
@click.option(
    "--output-bytes",
    type=int,
    default=65_536,
    show_default=True,
    metavar="N",
    help="Show at most N bytes each of stdout and stderr; the rest goes to a file.",
)
@click.option(
    "--seed",
    type=int,
    default=None,
    metavar="N",
    help="Start the program's random numbers from this seed.  [default: 0]",
)
@click.option(
    "--clock",
    default="fixed",
    metavar="fixed|now|TIME",
    help="Start the program's clock at 2026-01-01 (fixed), at the present (now), or at a time "
    "such as 2026-03-01T09:30.  [default: fixed]",
)
@click.option(
    "--wheel",
    "wheels",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Let the program import from this pure-Python wheel. May be repeated.",
)
@click.option(
    "--text",
    "texts",
    multiple=True,
    metavar="NAME=FILE",
    help="Let the program read a file as the text NAME, which stays on the host. May be repeated.",
)
@JSON
@click.option("--quiet", is_flag=True, help="Leave out the closing line with what was used.")
@click.pass_context
def command(
    called: click.Context,
    program: str,
    backend: str,
    accept_without: tuple[str, ...],
    session: str | None,
    fuel: int,
    memory_mb: int,
    wall_ms: int,
    output_bytes: int,
    seed: int | None,
    clock: str,
    wheels: tuple[Path, ...],
    texts: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> int:
    r"""Run a Python program in the sandbox.

    PROGRAM is a file, or - for standard input. Its output goes to stdout and stderr, the value of
    its last expression to stdout.

    \b
    Exit codes: 0 the program ended well, 1 it failed, 2 wrong usage,
    3 limit reached, 4 sandbox failed, 6 ledger failed (with --session),
    130 interrupted.

    \b
    Example:
        tally exec report.py --text log=server.log --fuel 5000000000
        tally exec fit.py --sandbox process --memory-mb 1024
    """
    _refuse_unsupported(called, backend)
    source = sys.stdin.buffer.read() if program == "-" else _read(Path(program))
    limits = Limits(fuel=fuel, memory_bytes=memory_mb * _MIB)
    clock_ns = run_clock(clock).clock_ns
    with _hold_session(session, seed=seed, clock_ns=clock_ns) as held:
        job = _Job(
            program=source,
            context=ExecutionContext(
                session_id=held.name.session if held else new_id(),
                timeout_ms=wall_ms,
                max_output_bytes=output_bytes,
                program_name="<stdin>" if program == "-" else Path(program).name,
                limits=limits,
            ),
            texts=_parse_texts(texts),
            wheels=wheels,
            session=held,
            seed=seed or 0,
            clock_ns=clock_ns,
            backend=backend,
            accept_without=accept_without,
        )
        result = asyncio.run(_execute(job))
    _show(result, as_json=as_json, quiet=quiet)
    return exit_code_of_result(result)


def _refuse_unsupported(called: click.Context, backend: str) -> None:
    """Raise `UsageError` if an option is given that the process sandbox would have to ignore."""
    if "process" not in read_preference(backend):
        return
    given = [
        option
        for name, option in _WASM_ONLY.items()
        if called.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise UsageError(
            f"the process sandbox does not support {', '.join(given)}; leave it out, or use "
            "--sandbox wasm"
        )


def _read(path: Path) -> bytes:
    """Read a file. Raise `UsageError` if that fails."""
    with system_errors(path, UsageError):
        return path.read_bytes()


@contextlib.contextmanager
def _hold_session(
    name: str | None, *, seed: int | None, clock_ns: int
) -> Iterator[HeldSession | None]:
    """Hold the session `name` for this process; with None, yield None.

    Without a name no ledger file is created, and the code of sessions is not imported. Raise what
    `hold_session` raises, such as `SessionBusy`.
    """
    if name is None:
        yield None
        return
    from tallystick.sessions.exec_sessions import hold_session
    from tallystick.stores import open_stores

    with (
        open_stores(ledger_path()) as stores,
        hold_session(
            stores.sessions,
            name,
            folder=data_directory() / "sessions",
            seed=seed,
            clock_ns=clock_ns,
        ) as held,
    ):
        yield held


def _parse_texts(given: tuple[str, ...]) -> dict[str, Path]:
    """Split each NAME=FILE. Raise `UsageError` or `InvalidName` for one that is not so."""
    texts = {}
    for each in given:
        name, equals, file = each.partition("=")
        if not equals or not file:
            raise UsageError(f"--text {each!r}: write NAME=FILE")
        if not name.isidentifier():
            raise InvalidName(what="--text", given=name, why="a Python identifier is needed")
        texts[name] = Path(file)
    return texts


async def _execute(job: _Job) -> ExecutionResult:
    if job.accept_without or "process" in read_preference(job.backend):
        backends = Backends(preference=job.backend, accept_without=job.accept_without, say=Sayer())
        try:
            if await backends.choose() == "process":
                return await _execute_native(backends.named("process").sandbox, job)
        finally:
            await backends.close()
    return await _execute_in_wasm(job)


async def _execute_native(sandbox: ProcessSandbox, job: _Job) -> ExecutionResult:
    session = await sandbox.open(session_id=job.context.session_id, seed=job.seed)
    result = await _run_program(session, job)
    await session.close()
    return result


async def _execute_in_wasm(job: _Job) -> ExecutionResult:
    sandbox = WasmSandbox.load(
        cache=cache_directory(),
        output_directory=data_directory() / "output",
        say=Sayer(),
    )
    try:
        session = await _open_interpreter(sandbox, job)
        for wheel in job.wheels:
            await session.add_wheel(_read(wheel), name=wheel.name)
        result = await _run_program(session, job)
        if job.session is not None:
            await job.session.keep(session)
        await session.close()
        return result
    finally:
        await sandbox.close()


async def _run_program(session: SandboxInterpreter, job: _Job) -> ExecutionResult:
    with _open_texts(job.texts) as texts, _stop_on_ctrl_c(session):
        host = HostTable(texts=texts)
        return await session.execute(job.program, context=job.context, host=host)


async def _open_interpreter(sandbox: WasmSandbox, job: _Job) -> WasmInterpreter:
    if job.session is not None:
        return await job.session.reopen(sandbox)
    return await sandbox.open(
        session_id=job.context.session_id, seed=job.seed, clock_ns=job.clock_ns
    )


@contextlib.contextmanager
def _open_texts(paths: dict[str, Path]) -> Iterator[dict[str, HostText]]:
    with contextlib.ExitStack() as stack:
        texts = {}
        for name, path in paths.items():
            with system_errors(f"--text {name}: {path}", UsageError):
                texts[name] = HostText.open(path)
            stack.callback(texts[name].close)
        yield texts


@contextlib.contextmanager
def _stop_on_ctrl_c(session: SandboxInterpreter) -> Iterator[None]:
    """Let the first Ctrl-C stop the program and keep its output, and the second end the process.

    Where signal handlers cannot be set (another thread, another system), nothing is changed.
    """
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        session.cancel()
        loop.remove_signal_handler(signal.SIGINT)

    try:
        loop.add_signal_handler(signal.SIGINT, interrupt)
    except (NotImplementedError, ValueError, RuntimeError):
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _show(result: ExecutionResult, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        echo_json(result)
        return
    click.echo(result.stdout, nl=False)
    if result.value is not None:
        click.echo(result.value)
    click.echo(result.stderr, nl=False, err=True)
    if result.error is not None:
        shown = result.error.traceback or f"{result.error.kind}: {result.error.message}"
        click.echo(shown.rstrip("\n"), err=True)
        if result.stop != "finished" and result.error.traceback:
            click.echo(f"{result.error.kind}: {result.error.message}", err=True)
    if not quiet:
        click.echo(_closing_line(result), err=True)


def _closing_line(result: ExecutionResult) -> str:
    charge = result.charge
    verdict = "ok" if result.succeeded else f"ended by {result.stop}"
    if result.stop == "finished" and not result.succeeded:
        verdict = f"failed, exit code {result.exit_code}"
    counts = [
        f"{charge.wall_ms:,} ms",
        f"{charge.host_calls:,} host calls",
        f"{charge.output_bytes:,} bytes printed",
    ]
    # Native code has no fuel, and its memory is held to a limit and not reported.
    if result.metadata.get("backend") != "process":
        counts.insert(0, f"{charge.fuel:,} fuel")
        counts.insert(2, f"{charge.memory_bytes / _MIB:.0f} MiB")
    return f"{verdict}: {', '.join(counts)}"
