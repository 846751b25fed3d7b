"""Programs that reach for the host's files, environment, network and processes."""
# ruff: noqa: E501 - a program is read by its own lines, not by ours.

from tests.escape.case import TRIED, Case, gives, raises, refused

HOST_FILES = [
    refused("open reads a file", "open('/etc/passwd').read()", "files.read"),
    refused("open writes a file", "open('/tmp/x', 'w').write('x')", "files.write"),
    refused("open appends to a file", "open('x.txt', 'a')", "files.write"),
    refused("os.open", "import os\nos.open('/etc/passwd', os.O_RDONLY)", "files.read"),
    refused("os.listdir of the root", "import os\nos.listdir('/')", "files.read"),
    refused("pathlib", "import pathlib\npathlib.Path('/etc/passwd').read_text()", "files.read"),
    refused("pathlib writes", "import pathlib\npathlib.Path('x').write_text('x')", "files.write"),
    refused("shutil.rmtree", "import shutil\nshutil.rmtree('/')", "files.read"),
    refused("os.remove", "import os\nos.remove('/etc/passwd')", "files.write"),
    refused("symlink", "import os\nos.symlink('/etc', '/tmp/etc')", "files.write"),
    refused("tempfile", "import tempfile\ntempfile.NamedTemporaryFile()", "files.write"),
    refused(
        "a file as a URL",
        "import urllib.request as u\nu.urlopen('file:///etc/hosts')",
        "files.read",
    ),
    raises(
        "_io.FileIO below our open", "import _io\n_io.FileIO('/etc/passwd')", "FileNotFoundError"
    ),
    raises(
        "posix.open below os.open",
        "import posix\nposix.open('/etc/passwd', 0)",
        "FileNotFoundError",
    ),
    raises(
        "a database file",
        "import sqlite3\nsqlite3.connect('/tmp/x.db').execute('select 1')",
        "OperationalError",
    ),
    raises(
        "a database attached",
        "import sqlite3\nsqlite3.connect(':memory:').execute(\"attach '/x' as x\")",
        "OperationalError",
    ),
    raises("proc", "import _io\n_io.open_code('/proc/self/environ')", "FileNotFoundError"),
    gives(
        "every low descriptor",
        TRIED
        + "import os\n[tried(os.read, fd, 9) for fd in range(3, 40) if tried(os.read, fd, 9) != 'OSError']",
        "[]",
    ),
    gives(
        "climbing out with dots",
        TRIED + "import _io\n[tried(_io.FileIO, '../' * n + 'etc/passwd') for n in range(1, 9)] "
        "== ['FileNotFoundError'] * 8",
        "True",
    ),
]

ENVIRONMENT = [
    gives("os.environ", "import os\ndict(os.environ)", "{}"),
    gives("posix.environ", "import posix\nposix.environ", "{}"),
    gives(
        "os.getenv of common names",
        "import os\n[os.getenv(n) for n in ('PATH', 'HOME', 'USER')]",
        "[None, None, None]",
    ),
    gives(
        "sys.argv", "import sys\nlen(sys.argv) <= 1, sys.orig_argv[1:], sys.path", "(True, [], [])"
    ),
    raises("the user's name", "import getpass\ngetpass.getuser()", "OSError"),
    raises("the password file", "import pwd\npwd.getpwuid(0)", "SandboxViolation"),
    gives("the home directory", "import os\nos.path.expanduser('~')", "'~'"),
    gives("the working directory", "import os\nos.getcwd()", "'/'"),
    gives("the host's name", "import socket\nsocket.gethostname()", "'(none)'"),
    gives(
        "setting a variable does not reach the next program's host",
        "import os\nos.environ['TALLY_SET_BY_GUEST'] = 'x'\nlen(os.environ)",
        "1",
    ),
]

NETWORK = [
    refused("socket", "import socket\nsocket.socket()", "network"),
    refused(
        "create_connection", "import socket\nsocket.create_connection(('1.1.1.1', 80))", "network"
    ),
    refused("a name lookup", "import socket\nsocket.getaddrinfo('example.com', 80)", "network"),
    refused("urlopen", "import urllib.request as u\nu.urlopen('http://127.0.0.1/')", "network"),
    refused(
        "http.client",
        "import http.client as h\nh.HTTPConnection('127.0.0.1').request('GET', '/')",
        "network",
    ),
    refused("ssl", "import ssl", "network"),
    raises("_socket below our socket", "import _socket\n_socket.socket()", "PermissionError"),
    raises(
        "_socket from a descriptor",
        "import _socket\n_socket.socket(fileno=1).send(b'x')",
        "OSError",
    ),
    raises(
        "an asyncio connection",
        "import asyncio\nawait asyncio.open_connection('127.0.0.1', 80)",
        "SandboxViolation",
    ),
    raises(
        "an asyncio server",
        "import asyncio\nawait asyncio.start_server(print, '127.0.0.1', 0)",
        "SandboxViolation",
        "OSError",
    ),
    raises("ftplib", "import ftplib\nftplib.FTP('127.0.0.1')", "SandboxViolation"),
    raises("smtplib", "import smtplib\nsmtplib.SMTP('127.0.0.1')", "SandboxViolation"),
]

PROCESSES = [
    refused("os.system", "import os\nos.system('id')", "process.run"),
    refused("os.popen", "import os\nos.popen('id')", "process.run"),
    refused("subprocess.run", "import subprocess\nsubprocess.run(['id'])", "process.run"),
    refused("os.fork", "import os\nos.fork()", "process.run"),
    refused("os.execv", "import os\nos.execv('/bin/sh', ['sh'])", "process.run"),
    refused("os.kill of the host", "import os\nos.kill(1, 9)", "process.run"),
    refused(
        "an asyncio subprocess",
        "import asyncio\nawait asyncio.create_subprocess_exec('id')",
        "process.run",
    ),
    raises("a native fork server", "import _posixsubprocess", "ModuleNotFoundError"),
    raises(
        "another process's interpreter",
        "import sys\nsys.remote_exec(1, 'x.py')",
        "FileNotFoundError",
        "SandboxViolation",
    ),
    raises(
        "another interpreter", "import _interpreters\n_interpreters.create()", "ModuleNotFoundError"
    ),
    Case(
        name="os._exit",
        program="import os\nos._exit(0)",
        stops=("trap",),
        kinds=("InterpreterTrap",),
    ),
    Case(
        name="os.abort",
        program="import os\nos.abort()",
        stops=("trap",),
        kinds=("InterpreterTrap",),
    ),
    Case(
        name="SIGKILL to itself",
        program="import signal\nsignal.raise_signal(signal.SIGKILL)",
        stops=("trap",),
        kinds=("InterpreterTrap",),
    ),
    Case(
        name="SIGSEGV to itself",
        program="import faulthandler\nfaulthandler._sigsegv()",
        stops=("trap",),
        kinds=("InterpreterTrap",),
    ),
    raises(
        "a signal handler and a timer", "import signal\nsignal.setitimer(0, 1)", "AttributeError"
    ),
    gives(
        "a stand-in for processes runs inline",
        "import multiprocessing as m, os\nm.Pool(4).map(lambda x: os.getpid(), range(3))",
        "[42, 42, 42]",
    ),
]
