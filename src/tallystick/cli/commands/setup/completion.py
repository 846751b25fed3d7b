"""`tally completion`: let a shell complete commands, options, and the ids of runs and sessions."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from tallystick.cli.completion import Candidate, complete, read_table
from tallystick.cli.exit_codes import OK
from tallystick.core.errors import UsageError

# How many runs are offered: those that a person may mean, and few enough to be read at once.
_RUNS_MAX = 50
_ABOUT_CHARS_MAX = 60
_FUNCTION = "_tally_completion"

_BASH = f"""\
{_FUNCTION}() {{
    local line found=() cur="${{COMP_WORDS[COMP_CWORD]}}"
    local said="${{COMP_LINE:0:COMP_POINT}}"
    while IFS= read -r line; do found+=("$line"); done \\
        < <("${{COMP_WORDS[0]}}" completion words "$said" 2>/dev/null)
    # Bash breaks words at `:` and `=`: what stands before the last of them is not repeated.
    local typed="${{said##*[[:space:]]}}"
    local cut="${{typed%"$cur"}}"
    [[ "$cur" == [:=] ]] && cut="$typed"
    COMPREPLY=()
    for line in "${{found[@]}}"; do
        if [[ ${{#found[@]}} -eq 1 ]]; then line="${{line%%$'\\t'*}}"
        else line="${{line/$'\\t'/  }}"; fi
        COMPREPLY+=("${{line#"$cut"}}")
    done
}}
complete -o nosort -o bashdefault -o default -F {_FUNCTION} tally tallystick
"""
_ZSH = f"""\
#compdef tally tallystick
{_FUNCTION}() {{
    local line word about said="${{(j: :)words[1,CURRENT]}}"
    local -a found
    for line in "${{(@f)$(${{words[1]}} completion words "$said" 2>/dev/null)}}"; do
        [[ -z "$line" ]] && continue
        word="${{line%%$'\\t'*}}" about="${{line#*$'\\t'}}"
        [[ "$about" == "$line" ]] && about=""
        found+=("${{word//:/\\\\:}}:$about")
    done
    if (( ${{#found}} )); then _describe -V tally found; else _files; fi
}}
compdef {_FUNCTION} tally tallystick
"""
_FISH = """\
function __tally_completion
    set -l words (commandline -opc)
    set -l found ($words[1] completion words (commandline -cp) 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c tally -f -a '(__tally_completion)'
complete -c tallystick -f -a '(__tally_completion)'
"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


@click.group("completion", invoke_without_command=False)
def command() -> None:
    r"""Let the shell complete commands, options, runs and sessions.

    \b
    Example:
        tally completion bash --install
        eval "$(tally completion zsh)"
    """


def _add(shell: str) -> None:
    where = "config.fish" if shell == "fish" else f".{shell}rc"

    @command.command(
        shell,
        help=f"Print the completion script for {shell}, or install it.\n\n"
        f"\b\nExample:\n    tally completion {shell} --install",
    )
    @click.option(
        "--install",
        is_flag=True,
        help="Write the script to a file, and have every new shell read it."
        if shell == "fish"
        else f"Write the script to a file, and name it in ~/{where}.",
    )
    def print_or_install(install: bool) -> int:
        if install:
            _install(shell)
        else:
            click.echo(_SCRIPTS[shell], nl=False)
        return OK


for _shell in _SCRIPTS:
    _add(_shell)


@command.command("words", hidden=True)
@click.argument("line")
def words_command(line: str) -> int:
    """Print what may come next in a command line, a word a line, each with what it means.

    Nothing is said of any error: a shell would print it into the line that is being typed.
    """
    with contextlib.suppress(Exception):
        for each in complete(_words_of(line)[1:], read_table(), _values):
            about = " ".join(each.about.split())[:_ABOUT_CHARS_MAX]
            click.echo(f"{each.word}\t{about}" if about else each.word)
        sys.stdout.flush()
    return OK


def _words_of(line: str) -> list[str]:
    """Return the words of a line up to the cursor; the last one is empty after a space."""
    try:
        words = shlex.split(line)
    except ValueError:
        # A quotation that is not closed yet. It ends at the cursor.
        for quote in ("'", '"'):
            with contextlib.suppress(ValueError):
                return shlex.split(line + quote)
        words = line.split()
    return [*words, ""] if line[-1:].isspace() or not line else words


# -- values -------------------------------------------------------------------------------------


def _values(kind: str, given: Sequence[str]) -> list[Candidate]:
    """Return the values of a kind that exist here; none for a kind that is not known."""
    finders = {
        "run": _runs,
        "session": _sessions,
        "snapshot": lambda: _snapshots(given),
        "model": _models,
        "provider": _providers,
        "skill": _skills,
        "memory": _memories,
    }
    found = finders.get(kind)
    return [] if found is None else list(found())


def _runs() -> Iterator[Candidate]:
    """Return the newest runs, the newest first, with their goals."""
    from tallystick.cli.show import plain
    from tallystick.core.records import RunStarted, decode_record
    from tallystick.ledger.port import RunFilter
    from tallystick.settings.paths import ledger_path
    from tallystick.stores import open_stores

    if not ledger_path().exists():
        return
    with open_stores(ledger_path()) as stores:
        ledger = stores.ledger
        for row in ledger.runs(RunFilter(outermost=True), most=_RUNS_MAX, newest_first=True):
            first = next(ledger.read(row.run, stop=1), None)
            begun = None if first is None or first.body is None else decode_record(first.body)
            yield Candidate(row.run, plain(begun.goal) if isinstance(begun, RunStarted) else "")
    yield Candidate("last", "the newest run")


def _sessions() -> Iterator[Candidate]:
    from tallystick.settings.paths import ledger_path
    from tallystick.stores import open_stores

    with open_stores(ledger_path()) as stores:
        if not stores.sessions.book.exists:
            return
        for each in reversed(stores.sessions.list()):
            yield Candidate(each.name or each.id, each.state)
    yield Candidate("last", "the newest session without a name")


def _snapshots(given: Sequence[str]) -> Iterator[Candidate]:
    """Return the snapshots of the session that is the argument before."""
    from tallystick.settings.paths import ledger_path
    from tallystick.stores import open_stores

    with open_stores(ledger_path()) as stores:
        sessions = stores.sessions
        if given and sessions.book.exists:
            for each in sessions.snapshots(sessions.find(given[-1])):
                yield Candidate(each.snapshot.name)


def _models() -> Iterator[Candidate]:
    """Return the aliases, the configured model, and the beginnings of names."""
    from tallystick.settings.settings import load_settings

    settings = load_settings()
    for alias, target in settings.aliases.items():
        yield Candidate(alias, target)
    if settings.model is not None and settings.model not in settings.aliases:
        yield Candidate(settings.model, "the configured model")
    for provider in settings.providers:
        yield Candidate(f"{provider}:", f"a model of {provider} (tally models {provider})")
    yield Candidate("gguf:", "a model in a file")
    yield Candidate("scripted:", "replies from a file")
    yield Candidate("recorded:", "the replies of a run")


def _providers() -> Iterator[Candidate]:
    from tallystick.settings.settings import load_settings

    for name, each in load_settings().providers.items():
        yield Candidate(name, each.base_url)


def _skills() -> Iterator[Candidate]:
    """Return the names of the directories that hold a skill; no skill is read.

    A layer that cannot be listed is passed over. Raise what `find_layers` raises.
    """
    from tallystick.skills.places import find_layers

    for layer in find_layers().layers:
        with contextlib.suppress(OSError):
            for each in sorted(layer.path.iterdir()):
                if (each / "SKILL.md").is_file():
                    yield Candidate(each.name, str(layer.path))


def _memories() -> Iterator[Candidate]:
    from tallystick.settings.paths import data_directory

    for each in sorted((data_directory() / "memory").glob("*.db")):
        yield Candidate(each.stem)


# -- installation -------------------------------------------------------------------------------


def _install(shell: str) -> None:
    """Write the script where the shell finds it, and say what was written.

    Raise `UsageError` if a file cannot be written. Doing it twice changes nothing more.
    """
    home = Path(os.environ.get("HOME") or "~").expanduser()
    try:
        if shell == "fish":
            config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
            _write(config / "fish" / "completions" / "tally.fish", _FISH)
        else:
            data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
            script = data / "tallystick" / f"completion.{shell}"
            _write(script, _SCRIPTS[shell])
            _name_in(home / f".{shell}rc", script)
    except OSError as error:
        raise UsageError(
            f"{error.filename or home}: cannot be written ({error.strerror or error}); "
            f"print the script with tally completion {shell}, and put it where your shell reads it"
        ) from None
    click.echo("Open a new shell to use it.", err=True)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    click.echo(f"wrote {path}", err=True)


def _name_in(rc: Path, script: Path) -> None:
    """Add a line that reads the script to a shell's start file, unless it is there, and say so.

    Raise `OSError` if the file cannot be read or written.
    """
    line = f"source {shlex.quote(str(script))}"
    said = rc.read_text(encoding="utf-8", errors="surrogateescape") if rc.exists() else ""
    if line in said.splitlines():
        return
    gap = "" if not said or said.endswith("\n") else "\n"
    with rc.open("a", encoding="utf-8") as file:
        file.write(f"{gap}{line}\n")
    click.echo(f"added to {rc}: {line}", err=True)
