"""`tally approve` and `tally deny`: a person decides about a program that waits for one."""

from __future__ import annotations

import getpass
import os
from typing import Any

import click

from tallystick.cli.resume import gone_on_with, with_resume

__all__ = ["approve_command", "deny_command"]


@click.command("approve")
@with_resume
def approve_command(**given: Any) -> int:  # noqa: ANN401 (the options, as they are called)
    r"""Let the program run that a run's vocabulary refused, and go on with the run.

    Under a strict vocabulary a run ends with exit code 1 once its retries are used up, and waits.
    tally inspect RUN shows the program. Who approved it, and when, is on the run's record.

    \b
    Example:
        tally inspect last
        tally approve last
    """
    return gone_on_with(**given, decision="approve", by=_who())


@click.command("deny")
@with_resume
def deny_command(**given: Any) -> int:  # noqa: ANN401 (the options, as they are called)
    r"""Do not let the program run; the model is told, and writes another.

    \b
    Example:
        tally deny last
    """
    return gone_on_with(**given, decision="deny", by=_who())


def _who() -> str:
    """Who decides, as far as this machine can say."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
