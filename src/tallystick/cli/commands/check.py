"""`tally check`: compare a program with a vocabulary, without a run."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tallystick.cli.options import vocabulary_for, with_vocabulary
from tallystick.cli.parts import JSON, echo_json
from tallystick.cli.show import safe
from tallystick.core.errors import UsageError, system_errors

# More than any program that is read; the rest of a longer file is not needed to say so.
_BYTES_MAX = 1 << 20
# The functions that the programs of every run find, and the names that they answer with.
_FUNCTIONS = (
    "attachments", "budget", "llm_query", "llm_query_batched", "outputs", "rlm_query",
    "rlm_query_batched",
)  # fmt: skip
_DATA = ("FINAL", "FINAL_VAR", "SHOW_VARS", "answer", "context")


@click.command("check")
@click.argument("program", metavar="FILE|-")
@with_vocabulary
@click.option("--function", "functions", multiple=True, metavar="NAME", help="A known function.")
@click.option(
    "--tool", "tools", multiple=True, metavar="NAME",
    help="A known function whose text arguments are checked, too.",
)  # fmt: skip
@click.option("--given", multiple=True, metavar="NAME", help="A name of data that it finds.")
@click.option("--shell", is_flag=True, help="FILE is a shell text, not Python.")
@JSON
def command(
    program: str,
    strictness: str | None,
    thesaurus: Path | None,
    functions: tuple[str, ...],
    tools: tuple[str, ...],
    given: tuple[str, ...],
    shell: bool,
    as_json: bool,
) -> int:
    r"""Check which names a program uses, as --vocabulary does in runs. It is not run.

    Exit code 1 if it would not run. The functions of every run are known, those of --function and
    --tool, and the terms of --thesaurus. Without --vocabulary the check is strict.

    \b
    Example:
        tally check program.py --tool crm.find --given rows
    """
    from tallystick.vocabulary import Vocabulary, check_program, read_thesaurus

    asked = vocabulary_for(strictness or "strict", thesaurus)
    assert asked is not None
    raw = asked.thesaurus
    result = check_program(
        _source(program),
        Vocabulary(
            functions=(*_FUNCTIONS, *functions),
            tools=tools,
            thesaurus=None if raw is None else read_thesaurus(raw, name=str(thesaurus)),
        ),
        asked.rules,
        kind="bash" if shell else "python",
        given=(*_DATA, *given),
    )
    if as_json:
        echo_json(result)
    elif result.is_valid:
        known = ", ".join(map(safe, result.matched_terms)) or "none"
        click.echo(f"passes    known terms: {known}")
        if result.unknown_terms:
            click.echo(f"unknown   {', '.join(map(safe, result.unknown_terms))}")
        if result.message:
            click.echo(f"note      {safe(result.message)}")
    else:
        click.echo("\n".join(map(safe, result.feedback().splitlines())))
    return 0 if result.is_valid else 1


def _source(name: str) -> str:
    if name == "-":
        raw = sys.stdin.buffer.read(_BYTES_MAX)
    else:
        with system_errors(safe(name), UsageError), open(name, "rb") as file:
            raw = file.read(_BYTES_MAX)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{safe(name)} is not UTF-8 at byte {error.start:,}") from None
