"""Models: what runs ask, what a reply costs, and scripts in the place of a model.

These names are the contract of this module; what else is in the package is internal.
`tallystick.settings.open_model` opens a model by its name.

- `Model` is the port to implement for a model of your own: it gets a `ModelRequest` and returns a
  `ModelReply` with its `ModelUsage`, or raises a `ModelError`
- `ScriptedModel` replies from a script, each a `ScriptedReply` with its `ScriptedUsage`
- `RecordedModel` replies as a recorded run was replied to
- `Pricing` says what calls cost and what is done without a price; `PriceTable` holds the prices
- `NOT_RECEIVED` and `UNKNOWN` are answers to the question of what became of an interrupted call
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.lazy_names import lazy_names

if TYPE_CHECKING:
    from tallystick.core.charge import ModelUsage
    from tallystick.core.views.open_calls import NOT_RECEIVED, UNKNOWN
    from tallystick.model.port import Model, ModelError, ModelReply, ModelRequest
    from tallystick.model.price_table import PriceTable, Pricing
    from tallystick.model.recorded import RecordedModel
    from tallystick.model.scripted import ScriptedModel, ScriptedReply, ScriptedUsage

__all__ = [
    "NOT_RECEIVED",
    "UNKNOWN",
    "Model",
    "ModelError",
    "ModelReply",
    "ModelRequest",
    "ModelUsage",
    "PriceTable",
    "Pricing",
    "RecordedModel",
    "ScriptedModel",
    "ScriptedReply",
    "ScriptedUsage",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "tallystick.core.charge": "ModelUsage",
            "tallystick.core.views.open_calls": "NOT_RECEIVED UNKNOWN",
            "tallystick.model.port": "Model ModelError ModelReply ModelRequest",
            "tallystick.model.price_table": "PriceTable Pricing",
            "tallystick.model.recorded": "RecordedModel",
            "tallystick.model.scripted": "ScriptedModel ScriptedReply ScriptedUsage",
        },
    )
