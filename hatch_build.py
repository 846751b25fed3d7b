"""The build hook: puts the guest into the package before the package is packed.

It runs for a wheel, for an editable install and whenever metadata is prepared, so it must cost
next to nothing when the guest is up to date; `build_guest` sees to that.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class GuestBuildHook(BuildHookInterface[Any]):
    """Builds the guest into `src/tallystick/guest/_image/`, which git ignores."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the guest, unless a guest of the same inputs is there."""
        # The build tools are in the repository and in source archives, never in the package.
        sys.path.insert(0, self.root)
        try:
            from tools.guest.build import build_guest
            from tools.guest.componentize import GuestBuildError
        finally:
            sys.path.remove(self.root)
        try:
            build_guest(Path(self.root) / "src" / "tallystick" / "guest" / "_image")
        except GuestBuildError as error:
            self.app.abort(f"guest: {error}")
