"""Formats of other systems: trajectories, logs of rlms, error codes.

These names are the contract of this module; what else is in the package is internal.

- `export_trajectory` writes the events of a run as lines of JSON: `Exported`
- `decode_event` reads such a line, and `encode_event` writes one; each is a `TrajectoryEvent`
- `import_rlms_log` reads a log of the rlms package into a ledger: `ImportedLog`
- `error_report` describes an error by the codes of the reference, as an `ErrorReport`;
  `entry_of_stop` returns the code for the end of a run
- `ERROR_CODES` are all codes: each an `ErrorCode`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.lazy_names import lazy_names

if TYPE_CHECKING:
    from tallystick.interop.error_codes import (
        ERROR_CODES,
        ErrorCode,
        ErrorReport,
        entry_of_stop,
        error_report,
    )
    from tallystick.interop.rlms import ImportedLog, import_rlms_log
    from tallystick.interop.trajectory import Exported, export_trajectory
    from tallystick.interop.trajectory_events import TrajectoryEvent, decode_event, encode_event

__all__ = [
    "ERROR_CODES",
    "ErrorCode",
    "ErrorReport",
    "Exported",
    "ImportedLog",
    "TrajectoryEvent",
    "decode_event",
    "encode_event",
    "entry_of_stop",
    "error_report",
    "export_trajectory",
    "import_rlms_log",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "tallystick.interop.error_codes": (
                "ERROR_CODES ErrorCode ErrorReport entry_of_stop error_report"
            ),
            "tallystick.interop.rlms": "ImportedLog import_rlms_log",
            "tallystick.interop.trajectory": "Exported export_trajectory",
            "tallystick.interop.trajectory_events": "TrajectoryEvent decode_event encode_event",
        },
    )
