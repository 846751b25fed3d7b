"""A session of the process sandbox that outlives its process."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.escape.process.boxes import made_sandbox, opened

from tallystick.core.errors import SandboxError, StoreError, UsageError
from tallystick.sandbox.process.sandbox import ProcessSandbox

pytestmark = pytest.mark.slow

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def sandbox() -> Iterator[ProcessSandbox]:
    made = made_sandbox(spares=0, disk_bytes=24 * MIB)
    yield made
    asyncio.run(made.close())


_ELSEWHERE = """
import asyncio, json, sys
from pathlib import Path
from tallystick.sandbox.host import HostTable
from tallystick.sandbox.port import ExecutionContext
from tallystick.sandbox.process.sandbox import ProcessSandbox
async def main():
    sandbox = ProcessSandbox(spares=0)
    session = await sandbox.open(session_id='T', saved=Path(sys.argv[1]))
    context = ExecutionContext(session_id='T')
    program = '(kept, json.dumps(more), os.stat("d/run").st_mode & 0o777)'
    value = await session.execute(program, context=context, host=HostTable())
    said = await session.command(
        'echo "$NAMED ${PWD##*/}"; cat a.txt; readlink ../link', context=context, host=HostTable())
    print(json.dumps([value.value or str(value.error), said.stdout]))
    await sandbox.close()
asyncio.run(main())
"""


def test_files_variables_and_the_shell_go_on_in_another_process(
    sandbox: ProcessSandbox, tmp_path: Path
) -> None:
    with opened(sandbox) as session:
        session.value("import json, os\nkept = [1, {'a': {2}}]\nmore = 'ü'\ndef made(): pass")
        session.value("class Thing: pass\nthing = Thing()\nopen_file = open('/dev/null')")
        session.said(
            "mkdir d; cd d; echo here > a.txt; touch run; chmod 751 run; ln -s /etc/passwd ../link;"
            " export NAMED='x y'; mkfifo pipe"
        )

        saved = session.do(session.session.save(tmp_path / "kept"))

    assert set(saved.refused) == {"made", "Thing", "thing", "open_file"}
    assert set(saved.imported) == {"json", "os"}
    assert saved.files_left_out == 1
    done = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE, str(tmp_path / "kept")],
        capture_output=True,
        text=True,
        check=True,
    )
    value, said = json.loads(done.stdout)
    assert value == "([1, {'a': {2}}], '\"\\\\u00fc\"', 489)"
    assert said == "x y d\nhere\n/etc/passwd\n"


def test_what_was_saved_is_for_its_owner_only(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    with opened(sandbox) as session:
        session.do(session.session.save(tmp_path / "kept"))
        with pytest.raises(UsageError, match="already exists"):
            session.do(session.session.save(tmp_path / "kept"))

        with pytest.raises(StoreError, match="File exists"):
            session.do(session.session.save(tmp_path / "kept" / "session.json" / "below"))

    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700
    assert sorted(each.name for each in tmp_path.iterdir()) == ["kept"]


@pytest.mark.slow
def test_a_variable_whose_saving_never_ends_leaves_the_session_usable(
    sandbox: ProcessSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallystick.sandbox.process.session._SECONDS", 0.3)
    with opened(sandbox) as session:
        session.value(
            "class Slow:\n    def __reduce__(self):\n        while True: pass\nslow = Slow()"
        )

        with pytest.raises(SandboxError, match="in time"):
            session.do(session.session.save(tmp_path / "kept"))

        assert session.value("type(slow).__name__") == "'Slow'"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("session.json", b"{"),
        ("session.json", b'{"format": 99}'),
        ("session.json", b'{"shell": 5}'),
        ("session.json", b"\xff"),
        ("files.tar", b"not a tar"),
        ("files.tar", b""),
    ],
)
@pytest.mark.slow
def test_a_directory_that_holds_something_else_is_refused(
    sandbox: ProcessSandbox, tmp_path: Path, name: str, content: bytes
) -> None:
    with opened(sandbox) as session:
        session.do(session.session.save(tmp_path / "kept"))
    (tmp_path / "kept" / name).write_bytes(content)

    with pytest.raises(StoreError, match="kept"):
        asyncio.run(sandbox.open(session_id="S", saved=tmp_path / "kept"))
    with pytest.raises(StoreError, match="absent"):
        asyncio.run(sandbox.open(session_id="S", saved=tmp_path / "absent"))


def test_a_hostile_archive_does_its_harm_in_the_box(
    sandbox: ProcessSandbox, tmp_path: Path
) -> None:
    import io
    import tarfile

    with opened(sandbox) as session:
        session.do(session.session.save(tmp_path / "kept"))
    with tarfile.open(tmp_path / "kept" / "files.tar", "w") as tar:
        for name in ("../../../../../../tmp/tally-out", "/tmp/tally-absolute", "plain"):
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"harm"))

    session_or_error: object
    try:
        with opened(sandbox, saved=tmp_path / "kept") as session:
            session_or_error = session.said("cat plain")
    except StoreError as error:
        session_or_error = error

    assert session_or_error is not None
    assert not Path("/tmp/tally-out").exists()
    assert not Path("/tmp/tally-absolute").exists()
