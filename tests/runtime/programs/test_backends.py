"""Which sandbox a run has: the first that works, by what is said, and never less isolation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.errors import SandboxError, UsageError
from tallystick.interop.error_codes import error_report
from tallystick.runtime.programs.backends import (
    Backends,
    NoBackendAvailable,
    read_preference,
)
from tallystick.sandbox.backend import BACKENDS


class Chosen(Backends):
    """Has only some of the sandboxes."""

    def __init__(self, *there: str, **more: Any) -> None:
        self.said: list[str] = []
        super().__init__(say=self.said.append, **more)
        self.there = there
        self.tries = 0

    async def _try(self, name: str) -> None:
        self.tries += 1
        if name not in self.there:
            raise SandboxError(f"there is no {name}")


def test_auto_is_wasm_and_no_other() -> None:
    assert read_preference("auto") == ("wasm",)
    with pytest.raises(NoBackendAvailable) as found:
        asyncio.run(Chosen("process").choose())
    assert [name for name, _ in found.value.tried] == ["wasm"]


def test_the_first_that_works_is_taken_and_the_others_are_said() -> None:
    backends = Chosen("wasm", preference="process,wasm")

    assert asyncio.run(backends.choose()) == "wasm"
    assert asyncio.run(backends.choose()) == "wasm"
    assert backends.said == ["sandbox process passed over: backend.sandbox: there is no process"]
    assert backends.tries == 2


def test_where_none_works_every_reason_is_told_with_the_code_of_the_table() -> None:
    with pytest.raises(NoBackendAvailable) as found:
        asyncio.run(Chosen(preference="process,wasm").choose())

    assert found.value.tried == (
        ("process", "backend.sandbox: there is no process"),
        ("wasm", "backend.sandbox: there is no wasm"),
    )
    told = error_report(found.value)
    assert (told.type, told.code, told.requires_user_action) == ("NoBackendAvailable", -32050, True)


@given(st.text(max_size=20))
def test_what_is_no_sandbox_is_refused_by_name(text: str) -> None:
    known = {"auto", "wasm", "process", "wasm,process", "process,wasm"}
    if text.replace(" ", "") in known:
        assert set(read_preference(text.strip())) <= set(BACKENDS)
        return
    with pytest.raises(UsageError, match="sandbox"):
        read_preference(text)


@pytest.mark.parametrize("text", ["", "docker", "wasm,", "wasm,wasm", "WASM"])
def test_a_bad_preference_is_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError, match="sandbox"):
        Backends(preference=text)


def test_a_layer_is_done_without_only_if_there_is_one_to_do_without() -> None:
    with pytest.raises(UsageError, match="only the process sandbox"):
        Backends(preference="wasm", accept_without=["landlock"])
    with pytest.raises(UsageError, match="pid namespace"):
        Backends(preference="process", accept_without=["pid namespace"])
    with pytest.raises(UsageError, match="nonsense"):
        Backends(preference="process", accept_without=["nonsense"])


def test_a_host_that_lacks_a_layer_is_refused_unless_it_is_named() -> None:
    said: list[str] = []

    async def chosen(**more: Any) -> str:
        backends = Backends(preference="process", say=said.append, **more)
        backends.named("process").sandbox.pretend("landlock", "this kernel has none")
        try:
            return await backends.choose()
        finally:
            await backends.close()

    with pytest.raises(NoBackendAvailable, match="landlock"):
        asyncio.run(chosen())
    try:
        assert asyncio.run(chosen(accept_without=["landlock"])) == "process"
    except NoBackendAvailable as error:
        pytest.skip(str(error))
    assert said == [
        "warning: the process sandbox does without landlock: this kernel has none",
    ]
