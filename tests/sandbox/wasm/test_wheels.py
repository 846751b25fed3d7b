"""Wheels in a session: pure Python from the host, with data files and metadata."""

import importlib.metadata
import io
import zipfile

import pytest
from tests.wasm_session import TestSession

from tallystick.core.errors import UsageError


def wheel(**files: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return made.getvalue()


def small_wheel(**more: str) -> bytes:
    return wheel(
        **{
            "small/__init__.py": "from small.part import TEN\n__version__ = '1.2'",
            "small/part.py": "TEN = 10\ndef fail():\n    raise ValueError('from a wheel')",
            "small/data/words.txt": "one two",
            "single.py": "ONE = 1",
            "space/inner/deep.py": "DEEP = True",
            "small-1.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: small\nVersion: 1.2\n",
            "small-1.2.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n",
            **more,
        }
    )


def installed(name: str) -> bytes:
    """A wheel of a package that is installed here."""
    distribution = importlib.metadata.distribution(name)
    files = distribution.files or []
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for file in files:
            if ".." not in str(file) and not str(file).endswith(".pyc"):
                archive.writestr(str(file), file.read_binary())
    return made.getvalue()


def add(session: TestSession, data: bytes) -> list[str]:
    return list(session.do(session.session.add_wheel(data, name="small.whl")))


def test_its_modules_packages_and_namespaces_are_imported(session: TestSession) -> None:
    modules = add(session, small_wheel())

    assert "small.part" in modules
    assert (
        session.value(
            "import small, single, space.inner.deep\nsmall.TEN, single.ONE, space.inner.deep.DEEP"
        )
        == "(10, 1, True)"
    )


def test_its_data_files_and_metadata_are_read(session: TestSession) -> None:
    add(session, small_wheel())

    assert (
        session.value(
            "import importlib.resources as r, importlib.metadata as m, pkgutil\n"
            "(r.files('small') / 'data' / 'words.txt').read_text(), m.version('small'), "
            "pkgutil.get_data('small', 'data/words.txt')"
        )
        == "('one two', '1.2', b'one two')"
    )


def test_a_traceback_through_it_shows_its_lines(session: TestSession) -> None:
    add(session, small_wheel())

    error = session.run("import small.part\nsmall.part.fail()").error

    assert error is not None
    assert "raise ValueError('from a wheel')" in error.traceback


@pytest.mark.parametrize(
    ("name", "program", "value"),
    [
        ("packaging", "from packaging.version import Version as V\nV('1.10') > V('1.9')", "True"),
        ("pluggy", "import pluggy\npluggy.PluginManager('p').project_name", "'p'"),
        ("iniconfig", "import iniconfig\niniconfig.__name__", "'iniconfig'"),
    ],
)
def test_real_packages_work(session: TestSession, name: str, program: str, value: str) -> None:
    add(session, installed(name))

    assert session.value(program) == value


def test_a_wheel_is_still_there_after_a_program_was_ended(session: TestSession) -> None:
    add(session, small_wheel())
    session.run("while True: pass", fuel=10_000_000)

    assert session.value("import small\nsmall.TEN") == "10"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not a wheel"),
        (b"PK\x03\x04 no", "not a wheel"),
        (wheel(**{"a.py": "1"}), "no .dist-info/WHEEL"),
        (small_wheel(**{"small/fast.so": "x"}), "native code"),
        (b"x" * (64 * 1024 * 1024 + 1), "at most"),
    ],
)
def test_what_is_no_pure_wheel_is_refused_with_the_reason(
    session: TestSession, data: bytes, why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        add(session, data)

    assert session.value("1") == "1"


@pytest.mark.slow
def test_a_wheel_that_unpacks_beyond_measure_is_refused(session: TestSession) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.py", "#" * (300 * 1024 * 1024))
        archive.writestr("bomb-1.dist-info/WHEEL", "Root-Is-Purelib: true")

    with pytest.raises(UsageError, match="unpacks to"):
        add(session, made.getvalue())
