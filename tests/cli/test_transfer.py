"""`tally export`, `import` and `rm` on a run with attachments, as a user calls them."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.test_exec import Tally
from tests.ledger.builders import OTHER, RUN
from tests.upkeep.transfer_builders import LARGE, SESSION, Place, attached_run, in_files, session_id

# Each starts processes: CI runs them.
pytestmark = pytest.mark.slow

GIVEN = ((b"small-and-secret", "notes", None), (LARGE, "large", None))


@pytest.fixture
def tally(tmp_path: Path) -> Tally:
    return Tally(tmp_path)


def folder_of(tally: Tally) -> Path:
    return Path(tally.env["TALLYSTICK_DATA_DIR"])


@pytest.fixture
def place(tally: Tally) -> Iterator[Place]:
    """The user's own ledger, with a run in it."""
    with contextlib.closing(in_files(folder_of(tally))) as made:
        attached_run(made, GIVEN)
        yield made


def test_an_export_says_what_it_carries_and_so_does_the_import(
    tally: Tally, place: Place, tmp_path: Path
) -> None:
    other = {"TALLYSTICK_DATA_DIR": str(tmp_path / "other")}

    exported = tally("export", "last", "run.tally")
    imported = tally("import", "run.tally", **other)

    told = f"with 2 attachments, {len(LARGE) + 16:,} bytes\n"
    assert (exported.returncode, imported.returncode) == (0, 0)
    assert exported.stderr == f"exported {RUN} to run.tally {told}"
    assert imported.stderr == f"imported {RUN} {told}"
    with contextlib.closing(in_files(tmp_path / "other")) as there:
        assert there.contents() == place.contents()


def test_a_run_whose_attachment_is_damaged_is_not_exported(
    tally: Tally, place: Place, tmp_path: Path
) -> None:
    (id,) = [ref.id for ref, data, _ in place.contents() if data == LARGE]
    (file,) = folder_of(tally).rglob(id)
    file.write_bytes(b"!" + LARGE[1:])

    done = tally("export", "last", "run.tally")

    assert done.returncode == 6
    assert done.stderr.count("\n") == 1
    assert f"attachment `{id}` is damaged" in done.stderr
    assert not (tmp_path / "run.tally").exists()


def test_a_removed_run_frees_what_nobody_else_holds(tally: Tally, place: Place) -> None:
    attached_run(place, [(LARGE, None, None)], run=OTHER, session=session_id(2))
    folder = folder_of(tally)

    first = tally("rm", RUN, "--yes")
    content = b"".join(each.read_bytes() for each in folder.rglob("*") if each.is_file())
    second = tally("rm", OTHER, "--yes")

    assert first.stderr == f"removed {RUN} and 1 of its attachments, 16 bytes\n"
    assert b"small-and-secret" not in content
    assert LARGE in content
    assert second.stderr == f"removed {OTHER} and 1 of its attachments, {len(LARGE):,} bytes\n"
    assert not [each for each in folder.rglob("*") if each.is_file() and len(each.name) == 64]


def test_a_run_is_removed_even_if_its_bytes_cannot_be(tally: Tally, place: Place) -> None:
    owners = folder_of(tally) / "ledger.db-attachments" / "owners"
    place.close()
    shutil.rmtree(owners)
    owners.touch()

    done = tally("rm", "last", "--yes")

    assert done.returncode == 0
    assert done.stderr.startswith(
        f"removed {RUN}; its attachments are not deleted yet (to delete them: tally attach gc): "
    )
    assert json.loads(tally("ls", "--json").stdout) == []
    assert json.loads(tally("attach", "ls", "--session", SESSION, "--json").stdout) == []
