"""Inputs: the files and texts that a run reads.

These names are the contract of this module; what else is in the package is internal.

- `read_inputs` reads files, directories and standard input, as `tally run -f` does
- `given_text` makes an input of a text
- `Input` is one of them: its bytes or file, its name, and the variable in which programs find it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.lazy_names import lazy_names

if TYPE_CHECKING:
    from tallystick.inputs.reading import read_inputs
    from tallystick.runtime.context.inputs import Input, given_text

__all__ = [
    "Input",
    "given_text",
    "read_inputs",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "tallystick.inputs.reading": "read_inputs",
            "tallystick.runtime.context.inputs": "Input given_text",
        },
    )
