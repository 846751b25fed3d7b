"""Commands, files and snapshots in the process sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.descriptors import new_descriptors, open_descriptors
from tests.escape.process.boxes import ProcessTestSession, made_sandbox, names_in, opened

from tallystick.core.errors import (
    InvalidName,
    MaxSnapshotsReached,
    SandboxError,
    SnapshotNotFound,
    UsageError,
)
from tallystick.sandbox.process.files import list_files
from tallystick.sandbox.process.inside.layers import Copies, Layers
from tallystick.sandbox.process.sandbox import ProcessSandbox

pytestmark = pytest.mark.slow

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessSandbox]:
    made = made_sandbox(tmp_path_factory.mktemp("output"), spares=0, disk_bytes=24 * MIB)
    yield made
    asyncio.run(made.close())


@pytest.fixture
def session(sandbox: ProcessSandbox) -> Iterator[ProcessTestSession]:
    with opened(sandbox) as made:
        yield made


# -- commands --------------------------------------------------------------------------------------


def test_a_command_gives_both_streams_and_its_exit_code(session: ProcessTestSession) -> None:
    result = session.command("echo out; echo err >&2; exit 3")

    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3)
    assert (result.stop, result.error, result.succeeded) == ("finished", None, False)


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [
        ("false", 1),
        ("no-such-program", 127),
        ("kill -TERM $$", 143),
        ("if then", 2),
        ("(exit 9)", 9),
        ("", 0),
        ("# nothing", 0),
        ("trap 'exit 5' EXIT", 5),
    ],
)
def test_exit_codes_are_those_of_a_shell(
    session: ProcessTestSession, command: str, exit_code: int
) -> None:
    assert session.command(command).exit_code == exit_code


def test_directory_and_exported_variables_go_from_command_to_command(
    session: ProcessTestSession,
) -> None:
    session.said("mkdir -p a/b; cd a/b; export KEPT='x y'\"'\"'z'; LOST=1; export LINES_='p\nq'")

    assert session.said('pwd; echo "$KEPT[$LOST]$LINES_"') == "/session/work/a/b\nx y'z[]p\nq\n"
    session.said("unset KEPT; exit 0")
    assert session.said('echo "[$KEPT]"') == "[]\n"


def test_what_an_ended_command_did_to_the_shell_is_undone(session: ProcessTestSession) -> None:
    session.said("export KEPT=1")

    ended = session.command("echo part; export KEPT=2; cd /; sleep 30", wall_ms=150)

    assert (ended.stop, ended.stdout, ended.timed_out) == ("wall", "part\n", True)
    assert session.said('echo "$KEPT $PWD"') == "1 /session/work\n"


def test_variables_of_one_commands_context_are_for_it_alone(session: ProcessTestSession) -> None:
    session.said("export KEPT=mine")

    with_given = {"env_vars": {"KEPT": "given", "ONCE": "1"}}
    assert session.said('echo "$KEPT$ONCE"', context=with_given) == "given1\n"
    assert session.said('echo "$KEPT$ONCE"') == "mine\n"


def test_a_directory_that_is_gone_is_replaced_by_the_first_one(session: ProcessTestSession) -> None:
    session.said("mkdir gone; cd gone; rmdir ../gone")

    assert session.said("pwd") == "/session/work\n"


def test_a_long_command_and_odd_text_arrive_whole(session: ProcessTestSession) -> None:
    text = "echo " + "ü\\'" * 60_000 + " | wc -m\n# '\"$(`"

    assert session.said(text) == "120001\n"
    with pytest.raises(UsageError, match="NUL"):
        session.command("echo a\0b")


def test_a_cancel_ends_a_command_and_what_it_started(session: ProcessTestSession) -> None:
    session.value("kept = 1")
    timer = threading.Timer(0.2, session.session.cancel)
    timer.start()

    result = session.command("(setsid sleep 300 &); sleep 300 & sleep 300")

    timer.join()
    assert (result.stop, names_in(session.namespace).count("sleep")) == ("cancelled", 0)
    assert session.value("kept") == "1"


def test_background_processes_go_on_between_commands(session: ProcessTestSession) -> None:
    session.said("(sleep 0.2; echo done > flag) > /dev/null 2>&1 & echo $! > pid")

    assert (
        session.said(
            "kill -0 $(cat pid) && echo there; while ! test -e flag; do sleep 0.02; done; cat flag"
        )
        == "there\ndone\n"
    )


def test_python_and_the_shell_see_the_same_files(session: ProcessTestSession) -> None:
    session.value("import os, pathlib\npathlib.Path('a.txt').write_text('one')")
    session.said("echo two >> a.txt; mkdir d; mv a.txt d/")

    assert session.value("pathlib.Path('d/a.txt').read_text()") == "'onetwo\\n'"


# -- files -----------------------------------------------------------------------------------------


def test_files_that_are_given_can_be_changed_and_stay_as_they_are_outside(
    sandbox: ProcessSandbox, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text("outside")
    (tmp_path / "link").symlink_to("sub/a.txt")
    (tmp_path / "out").symlink_to("/etc/shadow")
    (tmp_path / "set").write_text("#!/bin/sh\n")
    (tmp_path / "set").chmod(0o4755)

    with opened(sandbox, files=tmp_path) as session:
        assert session.said("cat link; echo inside > sub/a.txt; cat link; rm set; ls") == (
            "outsideinside\nlink\nout\nsub\n"
        )
        assert session.command("cat out").exit_code == 1

    assert (tmp_path / "sub" / "a.txt").read_text() == "outside"
    assert (tmp_path / "set").exists()


def test_a_directory_that_is_not_there_cannot_be_given(
    sandbox: ProcessSandbox, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    for given in (tmp_path / "absent", tmp_path / "file"):
        with pytest.raises((SandboxError, UsageError)):
            asyncio.run(sandbox.open(session_id="S", files=given))


def test_files_end_with_the_session(sandbox: ProcessSandbox) -> None:
    with opened(sandbox) as session:
        session.said("echo x > a; echo x > /tmp/a; echo x > /dev/shm/a")
    with opened(sandbox) as session:
        assert session.said("ls . /tmp /dev/shm | grep -c '^a$' || true") == "0\n"


def test_the_cap_holds_for_files_and_snapshots_together(session: ProcessTestSession) -> None:
    session.said("head -c 10M /dev/zero > a")
    session.do(session.session.snapshot("first"))
    session.said("head -c 8M /dev/zero > b")

    full = session.command("head -c 20M /dev/zero > c")

    assert full.exit_code != 0
    assert "No space left" in full.stderr
    session.do(session.session.restore("first"))
    assert session.said("ls; head -c 12M /dev/zero > d; stat -c %s d") == f"a\n{12 * MIB}\n"


# -- snapshots -------------------------------------------------------------------------------------


def test_a_snapshot_is_of_files_variables_and_the_shell(session: ProcessTestSession) -> None:
    session.value("kept = [1]\nopen('f', 'w').write('one')")
    session.said("mkdir d; cd d; export NAMED=first")
    made = session.do(session.session.snapshot("one"))
    session.value("kept.append(2)\nopen('f', 'w').write('two')")
    session.said("cd ..; rm -r d; export NAMED=second")

    session.do(session.session.restore(str(made)))

    assert session.value("kept, open('f').read()") == "([1], 'one')"
    assert session.said('echo "$NAMED ${PWD##*/}"') == "first d\n"
    assert [each.name for each in session.session.snapshots()] == ["one"]


def test_one_can_go_back_again_and_again_and_to_others(session: ProcessTestSession) -> None:
    for number in range(3):
        session.value(f"n = {number}\nopen('f{number}', 'w').close()")
        session.do(session.session.snapshot(f"s{number}"))

    seen = []
    for number in (0, 2, 1, 0, 0):
        session.do(session.session.restore(f"s{number}"))
        seen.append((session.value("n"), session.said("ls").split()))
        session.value("n = 99\nopen('more', 'w').close()")

    names = ["f0", "f1", "f2"]
    assert seen == [(str(n), names[: n + 1]) for n in (0, 2, 1, 0, 0)]


def test_the_number_of_snapshots_is_limited_and_a_deleted_one_counts_no_more(
    session: ProcessTestSession,
) -> None:
    for number in range(10):
        session.do(session.session.snapshot(f"s{number}"))
    with pytest.raises(MaxSnapshotsReached):
        session.do(session.session.snapshot("more"))

    session.do(session.session.delete_snapshot("s3"))

    session.do(session.session.snapshot("more"))
    with pytest.raises(SnapshotNotFound):
        session.do(session.session.restore("s3"))
    with pytest.raises(UsageError, match="has a snapshot"):
        session.do(session.session.snapshot("more"))
    with pytest.raises(InvalidName):
        session.do(session.session.snapshot("../up"))


def test_a_snapshot_is_refused_while_a_file_is_being_written(session: ProcessTestSession) -> None:
    session.value("held = open('held', 'w')")

    with pytest.raises(UsageError, match="open for writing"):
        session.do(session.session.snapshot("s"))

    session.value("held.close()")
    session.do(session.session.snapshot("s"))


@pytest.mark.slow
def test_many_snapshots_one_after_the_other_stay_few_layers(session: ProcessTestSession) -> None:
    session.said("echo 0 > kept; mkdir d; echo x > d/gone")
    for number in range(26):
        session.said(f"echo {number} > last; rm -f d/gone")
        session.do(session.session.snapshot("s"))
        session.do(session.session.delete_snapshot("s"))

    assert session.said("cat kept last; ls d | wc -l") == "0\n25\n0\n"


def test_going_back_ends_what_was_running(session: ProcessTestSession) -> None:
    session.do(session.session.snapshot("s"))
    # The second is called setsid until it has become sleep.
    session.said("sleep 300 & setsid sleep 300 & sleep 0.2; echo")
    assert names_in(session.namespace).count("sleep") == 2

    session.do(session.session.restore("s"))

    assert names_in(session.namespace).count("sleep") == 0


class _Tree(RuleBasedStateMachine):
    """Files under snapshots do what a dictionary under copies does."""

    sandbox: ProcessSandbox

    def __init__(self) -> None:
        super().__init__()
        self.session = ProcessTestSession(self.sandbox)
        self.files: dict[str, str] = {}
        self.kept: dict[str, dict[str, str]] = {}
        self.session.value("import os, shutil")

    paths = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a"])

    @initialize()
    def begin(self) -> None:
        self.files = {}

    @rule(path=paths, text=st.text("xyz", max_size=3))
    def write(self, path: str, text: str) -> None:
        program = (
            f"os.makedirs(os.path.dirname({path!r}) or '.', exist_ok=True)\n"
            f"with open({path!r}, 'w') as f: f.write({text!r})"
        )
        self.session.value(program)
        self.files[path] = text

    @rule(path=paths)
    def remove(self, path: str) -> None:
        self.session.value(f"if os.path.exists({path!r}): os.remove({path!r})")
        self.files.pop(path, None)

    @rule()
    def replace_directory(self) -> None:
        self.session.value("shutil.rmtree('d', ignore_errors=True)\nos.mkdir('d')")
        self.files = {path: text for path, text in self.files.items() if not path.startswith("d/")}

    @rule(name=st.sampled_from(["s", "t"]))
    def snapshot(self, name: str) -> None:
        if name in self.kept:
            self.session.do(self.session.session.delete_snapshot(name))
        self.session.do(self.session.session.snapshot(name))
        self.kept[name] = dict(self.files)

    @rule(name=st.sampled_from(["s", "t"]))
    def restore(self, name: str) -> None:
        if name in self.kept:
            self.session.do(self.session.session.restore(name))
            self.files = dict(self.kept[name])

    @invariant()
    def the_files_are_those(self) -> None:
        listed = self.session.value(
            "{os.path.relpath(os.path.join(w, n)): open(os.path.join(w, n)).read()"
            " for w, _, names in os.walk('.') for n in names} =="
            f" {self.files!r}"
        )
        assert listed == "True"

    def teardown(self) -> None:
        self.session.close()


@pytest.mark.parametrize("kind", [Layers, Copies])
@pytest.mark.slow
def test_files_under_snapshots_do_what_a_dictionary_under_copies_does(kind: type) -> None:
    sandbox = made_sandbox(disk_bytes=8 * MIB)
    if kind is Copies:
        asyncio.run(sandbox.layers())
        sandbox.pretend("overlay", "it is not here")
    machine = type("Tree", (_Tree,), {"sandbox": sandbox})
    test = machine.TestCase  # type: ignore[attr-defined]
    test.settings = settings(max_examples=3, stateful_step_count=10, deadline=None)
    try:
        test("runTest").debug()
    finally:
        asyncio.run(sandbox.close())


@pytest.mark.slow
def test_copies_are_used_and_said_where_there_is_no_overlay() -> None:
    sandbox = made_sandbox(disk_bytes=16 * MIB)
    asyncio.run(sandbox.layers())
    sandbox.pretend("overlay", "it is not here")
    with opened(sandbox) as session:
        session.said("echo one > f; mkdir -m 000 closed; ln -s f l")
        session.do(session.session.snapshot("s"))
        session.said("echo two > f; rmdir closed")
        session.do(session.session.restore("s"))

        assert session.said("cat l; ls -d closed; stat -f -c %T .") == "one\nclosed\ntmpfs\n"
        full = session.command("head -c 30M /dev/zero > big")
        assert "No space left" in full.stderr
    asyncio.run(sandbox.close())


@pytest.mark.slow
def test_an_open_session_leaves_no_descriptors_behind() -> None:
    asyncio.run(made_sandbox().close())  # Skips where there can be no session.
    sandbox = ProcessSandbox(spares=0)
    with opened(sandbox) as session:
        session.run("print(1)")
        session.command("echo 1")
        before = open_descriptors()
        for _ in range(5):
            session.run("print(1)")
            session.command("echo 1")
            session.run("while True: pass", wall_ms=20)
        assert new_descriptors(before) == {}
    asyncio.run(sandbox.close())


# -- the working directory, listed with what is new ------------------------------------------------


def test_a_file_that_was_only_moved_is_not_sent_again(session: ProcessTestSession) -> None:
    session.said("mkdir d; echo one > d/a; echo two > d/b; ln -s a d/l; mkfifo d/p")
    first = session.do(list_files(session.session))
    files = [each for each in first.found if each.kind == "file"]
    session.said("mv d e; echo more >> e/b")

    second = session.do(list_files(session.session, files))

    assert first.contents == {b"d/a": b"one\n", b"d/b": b"two\n"}
    assert (first.other, second.other) == ((b"d/p",), (b"e/p",))
    assert [each.path for each in second.found] == [b"e", b"e/a", b"e/b", b"e/l"]
    assert second.contents == {b"e/b": b"two\nmore\n"}


def test_a_deep_tree_and_a_closed_directory_are_listed_as_far_as_they_can_be(
    session: ProcessTestSession,
) -> None:
    session.said("mkdir shut; touch shut/in; chmod 0 shut")
    session.run(
        "import os\nfor _ in range(3000):\n    os.mkdir('deep')\n    os.chdir('deep')\n"
        "os.chdir('/session/work')"
    )

    listing = session.do(list_files(session.session))

    assert b"shut" in {each.path for each in listing.found}
    assert b"shut/*" in listing.other
    assert max(len(each.path) for each in listing.found) > 3000
    # What no path leads to is named too.
    assert any(len(each) > 3000 for each in listing.other)


def test_a_box_that_stops_what_lists_its_files_is_refused_in_time(
    session: ProcessTestSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallystick.sandbox.process.session._SECONDS", 1.0)
    session.said("head -c 15000000 /dev/urandom > large")
    session.run(
        "import os, signal\n"
        "if os.fork() == 0:\n"
        "    own = {int(name) for name in os.listdir('/proc') if name.isdigit()}\n"
        "    while True:\n"
        "        for name in os.listdir('/proc'):\n"
        "            if name.isdigit() and int(name) not in own:\n"
        "                try: os.kill(int(name), signal.SIGSTOP)\n"
        "                except OSError: pass\n"
    )

    began = time.monotonic()
    with contextlib.suppress(SandboxError):
        session.do(list_files(session.session))
    assert time.monotonic() - began < 30
