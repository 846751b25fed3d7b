"""`tally config`: print each setting and its source, and trust the file of a project."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click

from tallystick.cli.parts import JSON, echo_json, stdout_columns
from tallystick.core.errors import UsageError
from tallystick.settings.files import PROJECT_FILE, config_directory
from tallystick.settings.schema import one_line
from tallystick.settings.settings import Setting, load_settings, project_file_path, restricted_lines
from tallystick.settings.trust import TrustStore

# The fields that are shown of a provider with default values only; --json has the others too.
_ALWAYS_SHOWN = (".base_url", ".key")


@click.group("config", invoke_without_command=True)
@JSON
@click.pass_context
def command(context: click.Context, as_json: bool) -> int:
    r"""Print each setting and where it came from.

    API keys are not printed, only where each was found.

    \b
    Example:
        tally config
        tally config trust
    """
    if context.invoked_subcommand is not None:
        return 0
    settings = load_settings()
    found = settings.listed()
    if as_json:
        echo_json(found)
    else:
        for line in _table([each for each in found if _is_shown(each)], stdout_columns()):
            click.echo(line)
    for warning in settings.warnings:
        click.echo(f"warning: {warning}", err=True)
    return 0


@command.command("trust")
@click.option("--yes", is_flag=True, help="Trust the file without asking.")
def trust_command(yes: bool) -> int:
    r"""Trust the configuration file of this project.

    Without trust, the file cannot set grants, providers, prices and the like. The settings that
    need trust are printed first. Trust ends when the file changes.

    \b
    Example:
        tally config trust
    """
    project = load_settings().project
    if project is None:
        raise UsageError(_NO_FILE)
    project.file.require_supported()
    if project.state == "trusted":
        click.echo(f"already trusted: {project.file.shown_path}", err=True)
        return 0
    for line in restricted_lines(project.file, project.restricted, project.providers):
        click.echo(line)
    if not yes:
        click.confirm(f"trust {project.file.shown_path}?", abort=True, err=True)
    TrustStore(config_directory(os.environ)).trust(project.file)
    click.echo(f"trusted {project.file.shown_path} (sha256 {project.file.sha256})", err=True)
    return 0


@command.command("untrust")
def untrust_command() -> int:
    r"""End the trust in the configuration file of this project.

    \b
    Example:
        tally config untrust
    """
    path = project_file_path()
    if path is None:
        raise UsageError(_NO_FILE)
    found = TrustStore(config_directory(os.environ)).untrust(path)
    state = "no longer trusted" if found else "was not trusted"
    click.echo(f"{state}: {one_line(str(path))}", err=True)
    return 0


_NO_FILE = f"there is no {PROJECT_FILE} in this directory or above it; run this inside the project"


def _is_shown(setting: Setting) -> bool:
    is_detail = setting.name.startswith("providers.") and not setting.name.endswith(_ALWAYS_SHOWN)
    return not is_detail or setting.source != "default"


def _table(rows: list[Setting], width: int | None) -> Iterator[str]:
    """Write a line for each setting; on a terminal, the source of a wide one on its own line."""
    widths = [max(len(row.name) for row in rows), max(len(row.value or "-") for row in rows)]
    # A row with a long path is wider. The others then still fit 80 columns.
    widths[1] = min(widths[1], 30)
    for row in rows:
        name_and_value = f"{row.name:<{widths[0]}}  {row.value or '-':<{widths[1]}}"
        if width is None or len(name_and_value) + 2 + len(row.source) <= width:
            yield f"{name_and_value}  {row.source}"
        else:
            yield name_and_value.rstrip()
            yield f"{'':<{widths[0]}}  {row.source}"
