"""Runs of these tests use a sandbox of plain Python, unless they are about the guest."""

from typing import cast

import pytest

from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.sandbox import PlainSandbox


@pytest.fixture(scope="module")
def sandbox(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> WasmSandbox:
    """A double in the place of the WASM sandbox.

    A module that is about the guest has `NEEDS_GUEST = True`, and gets the sandbox itself; a single
    test takes `wasm_sandbox`.
    """
    if getattr(request.module, "NEEDS_GUEST", False):
        real: WasmSandbox = request.getfixturevalue("wasm_sandbox")
        return real
    return cast(WasmSandbox, PlainSandbox(output_directory=tmp_path_factory.mktemp("output")))
