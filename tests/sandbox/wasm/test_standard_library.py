"""The whole standard library is there, but for what needs something this sandbox lacks."""

import pytest
from tests.wasm_session import TestSession

# Modules whose native half is missing, and what for. docs/reference/limits.md lists the same.
ABSENT = {
    "bz2", "ctypes", "curses", "fcntl", "grp", "idlelib", "lzma", "mmap", "pty", "pwd",
    "readline", "resource", "ssl", "syslog", "termios", "tkinter", "tty", "turtle", "turtledemo",
    "ensurepip",
}  # fmt: skip
FOR_OTHER_SYSTEMS = {"msvcrt", "nt", "ntpath", "winreg", "winsound", "_winapi", "_scproxy"}


def test_every_standard_module_can_be_imported_or_is_absent_by_name(session: TestSession) -> None:
    program = """
import importlib, sys
failed = {}
for name in sorted(sys.stdlib_module_names):
    if not name.startswith('_') and name not in ('antigravity', 'this', 'idlelib'):
        try:
            importlib.import_module(name)
        except ImportError as error:
            failed[name] = str(error)
sorted(failed)
"""
    value = session.value(program)
    assert value is not None
    failed = set(eval(value))

    assert failed <= ABSENT | FOR_OTHER_SYSTEMS


@pytest.mark.parametrize(
    ("module", "capability"),
    [("bz2", "native.code"), ("ctypes", "native.code"), ("ssl", "network"), ("tkinter", "display")],
)
def test_an_absent_module_names_the_capability_it_needs(
    session: TestSession, module: str, capability: str
) -> None:
    result = session.run(f"import {module}")

    assert result.error is not None
    assert result.error.kind == "SandboxViolation"
    assert capability in result.error.message


def test_an_absent_module_is_an_import_error_to_who_asks_politely(session: TestSession) -> None:
    assert session.value("try:\n    import lzma\nexcept ImportError:\n    found = None\n1") == "1"


@pytest.mark.parametrize(
    "program",
    [
        "import zipfile, gzip, tarfile, shutil; 1",
        "import xml.sax, xmlrpc.client, wsgiref.util; 1",
        "import http.server, smtplib, ftplib, imaplib; 1",
        "import unittest.mock, doctest, pdb, cProfile, pstats; 1",
        "import email.mime.text, mailbox; 1",
        "import encodings.big5, encodings.shift_jis; 'é'.encode('cp850'); 1",
        "import compression.zlib, string.templatelib, annotationlib; 1",
    ],
)
def test_rarer_modules_come_from_the_archive(session: TestSession, program: str) -> None:
    assert session.value(program) == "1"
