"""`tally stop`: stop a run that another process works on."""

from __future__ import annotations

import click

from tallystick.cli.exit_codes import OK
from tallystick.cli.parts import JSON, echo_json, echo_line
from tallystick.live.stop import WAIT_SECONDS, stop


@click.command("stop")
@click.argument("run")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=WAIT_SECONDS,
    show_default=True,
    help="Wait this many seconds for the end of the run.",
)
@JSON
def stop_command(run: str, wait: float, as_json: bool) -> int:
    r"""Stop a run that a process of this machine works on.

    The run and the runs inside it end as cancelled, usually within half a second, and the record
    says who stopped them. tally resume continues them. A run that nothing works on stays as it is.
    RUN is an id, the beginning of one, or `last`.

    \b
    Exit codes: 0 it has ended or will, 2 nothing works on the run.

    \b
    Example:
        tally stop last
    """
    done = stop(run, wait=wait)
    if as_json:
        echo_json({"run": done.run, "stop": done.stop})
    elif done.stop is None:
        echo_line(
            f"asked    run {done.run} to stop; it has not ended yet: tally inspect {done.run}"
        )
    elif done.stop == "cancelled":
        echo_line(f"stopped  run {done.run}")
        echo_line(f"next     tally resume {done.run}")
    else:
        echo_line(f"ended    run {done.run} by itself: {done.stop}")
    return OK
