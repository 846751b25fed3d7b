"""What runs do with attachments: inputs, long output, what programs keep, pictures, replay."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tallystick.attachments.memory import MemoryAttachments
from tallystick.attachments.port import AttachmentNotFound
from tallystick.attachments.session import SessionAttachments
from tallystick.client import Session
from tallystick.core.errors import UsageError
from tallystick.core.machine.prompt import Image, Message
from tallystick.core.records import (
    AttachmentRef,
    HostAnswered,
    ProgramFinished,
    RunStarted,
    encode_record,
)
from tallystick.inputs.reading import read_inputs
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.model.scripted import ScriptedModel, ScriptedReply
from tallystick.runtime.calls.functions import host_function
from tallystick.runtime.context.attachments import RunAttachments, with_pictures
from tallystick.runtime.context.inputs import given_text
from tallystick.runtime.runs.history import records_of
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import ModelDouble, block
from tallystick.testing.runs import Played, play

LINES = 20_000
LONG = f"for n in range({LINES}): print('line', n, 'of output')"
WHOLE = "".join(f"line {n} of output\n" for n in range(LINES))
BOTH = ("attachments.read", "attachments.write")
# A picture of 2 by 3 pixels, as far as its header.
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\2\0\0\0\3\x08\2\0\0\0" + b"pixels" * 10


def finished(played: Played) -> list[ProgramFinished]:
    return [each for each in played.records if isinstance(each, ProgramFinished)]


def answers(played: Played, name: str) -> list[HostAnswered]:
    found = [each for each in played.records if isinstance(each, HostAnswered)]
    return [each for each in found if each.name == name]


def recorded_bytes(played: Played) -> int:
    return sum(len(encode_record(each)) for each in played.records)


def held(played: Played) -> SessionAttachments:
    begun = played.records[0]
    assert isinstance(begun, RunStarted)
    return SessionAttachments(played.session.attachments, session_id=begun.session_id)


# -- long output -------------------------------------------------------------------------------


def test_output_that_is_too_long_is_kept_and_the_next_program_has_it(
    wasm_sandbox: WasmSandbox,
) -> None:
    played = play(
        wasm_sandbox,
        [
            block(LONG),
            block(
                "whole = outputs[-1]\n"
                "print(len(outputs), len(whole), whole[-20:-1], whole.search('line 777 .*'))"
            ),
            block("print(outputs[0].peek(90))"),
            block("FINAL('done')"),
        ],
    )
    first, second, third, _ = finished(played)

    (ref,) = first.outputs
    assert ref.id == hashlib.sha256(WHOLE.encode()).hexdigest()
    assert ref.byte_len == len(WHOLE)
    assert held(played).read(ref.id) == WHOLE.encode()
    at = WHOLE.index("line 777 ")
    assert (
        second.stdout
        == f"1 {len(WHOLE)} {WHOLE[-20:-1]} [({at}, {at + 18}, 'line 777 of output')]\n"
    )
    assert third.stdout.startswith(f"[0:30] {WHOLE[:30]}\n")
    assert third.stdout.endswith(f"{WHOLE[-30:]}\n")
    assert played.replayed().held


@pytest.mark.parametrize("piece", ["x", "é"])
def test_a_long_answer_is_the_answer_and_kept_as_an_attachment(
    sandbox: WasmSandbox, piece: str
) -> None:
    played = play(sandbox, [block(f"FINAL({piece!r} * 2_000_000)")])
    (ended,) = finished(played)
    whole = piece * 2_000_000

    assert played.run.answer == whole
    assert isinstance(ended.answer_ref, AttachmentRef)
    assert ended.answer_ref.label == "answer of program 2"
    assert held(played).read(ended.answer_ref.id) == whole.encode()
    assert played.replayed().held


def test_a_long_answer_that_is_asked_about_is_quoted_in_part_and_taken_when_it_is_repeated(
    sandbox: WasmSandbox,
) -> None:
    long = block("FINAL('x' * 2_000_000)")
    data = given_text("\n".join(f"line {number}" for number in range(2_000)))

    played = play(sandbox, [long, long], inputs=[data], strategy="code")

    assert (played.run.stop, len(played.run.answer or "")) == ("answered", 2_000_000)
    assert played.run.charge.tokens_in < 10_000
    assert played.replayed().held


def test_a_short_answer_is_no_attachment(sandbox: WasmSandbox) -> None:
    (ended,) = finished(play(sandbox, [block("FINAL('x' * 65_536)")]))

    assert ended.answer_ref is msgspec.UNSET


def test_the_model_is_told_where_the_rest_of_an_output_is(sandbox: WasmSandbox) -> None:
    played = play(sandbox, [block(LONG), block("FINAL(outputs[0][0:6])")])

    assert "outputs[0] has all: outputs[0][0:500]" in finished(played)[0].stdout
    assert played.run.answer == "line 0"


def test_both_streams_are_kept_each_under_its_place(sandbox: WasmSandbox) -> None:
    program = "import sys\nprint('a' * 70_000)\nprint('b' * 70_000, file=sys.stderr)"
    played = play(
        sandbox, [block(program), block("FINAL([each[0:2] for each in (outputs[0], outputs[1])])")]
    )
    first = finished(played)[0]

    assert [ref.label for ref in first.outputs] == ["stdout of program 2", "stderr of program 2"]
    assert "outputs[0] has all" in first.stdout
    assert "outputs[1] has all" in first.stderr
    assert played.run.answer == '["aa","bb"]'
    assert played.replayed().held


def test_what_is_short_enough_is_kept_nowhere(sandbox: WasmSandbox) -> None:
    played = play(sandbox, [block("print('x' * 65_535)"), block("FINAL(len(outputs))")])

    assert finished(played)[0].outputs == ()
    assert played.run.answer == "0"
    assert held(played).references() == []


def test_no_file_is_left_of_what_was_kept(sandbox: WasmSandbox) -> None:
    assert sandbox.output_directory is not None
    before = set(sandbox.output_directory.glob("*"))

    play(sandbox, [block(LONG), block("FINAL(1)")]).replayed()

    assert set(sandbox.output_directory.glob("*")) == before


def test_a_kept_output_that_was_changed_on_disk_is_a_divergence(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    replies = [block(LONG), block("FINAL(outputs[0][0:6])")]
    model = ScriptedModel([ScriptedReply(text=each) for each in replies])
    ledger = SqliteLedger(tmp_path / "ledger.db")
    with Session(model=model, ledger=ledger, sandbox=sandbox) as session:
        run = session.run("?")
        before = session.replay(run.run)
        (path,) = (tmp_path / "ledger.db-attachments").glob("??/*")
        path.write_bytes(path.read_bytes().replace(b"line 0 ", b"line 9 "))
        after = session.replay(run.run)

    assert before.held
    assert after.divergence is not None
    assert after.divergence.field == "reply"


# -- inputs ------------------------------------------------------------------------------------


def corpus(chars: int = 5_000_000) -> str:
    line = "der Kai, die Straße, the harbour, 港, 🚢 number {}\n"
    made = "".join(line.format(n) for n in range(chars // len(line) + 1))
    return made[:chars]


def test_slices_of_a_long_text_are_made_again_and_not_recorded(sandbox: WasmSandbox) -> None:
    text = corpus()
    at = text.index("number 40000")
    played = play(
        sandbox,
        [
            block("part = context[1_000_000:1_200_000]\nprint(len(part), len(context))"),
            block("print(context.search('number 40000'))"),
            block(f"FINAL(context[{at}:{at + 12}])"),
        ],
        inputs=[given_text(text)],
    )

    assert finished(played)[0].stdout == "200000 5000000\n"
    assert played.run.answer == "number 40000"
    assert recorded_bytes(played) < 20_000
    assert all(each.reply == b"" and each.reply_sha256 for each in answers(played, "text.slice"))
    assert played.replayed().held


def test_a_run_reads_what_it_was_given_and_not_what_became_of_the_file(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    path = tmp_path / "big.txt"
    text = corpus()
    path.write_text(text)
    changed: list[bool] = []

    @host_function(policy="read")
    def meanwhile() -> None:
        """Something happens outside."""
        path.write_text("x" * len(text.encode()))
        changed.append(True)

    ledger = SqliteLedger(tmp_path / "ledger.db")
    model = ScriptedModel(
        [ScriptedReply(text=block("meanwhile()\nFINAL(context[0:7] + context[-9:])"))]
    )
    with Session(model=model, functions=[meanwhile], ledger=ledger, sandbox=sandbox) as session:
        run = session.run("?", inputs=read_inputs([str(path)]))
        path.unlink()
        report = session.replay(run.run)

    assert changed == [True]
    assert run.answer == text[0:7] + text[-9:]
    assert report.held


def test_several_files_keep_their_order_and_names(sandbox: WasmSandbox) -> None:
    inputs = [given_text(text, name=name) for name, text in (("z.txt", "1"), ("a.txt", "2"))]
    played = play(sandbox, [block("FINAL(str(list(context.items())))")], inputs=inputs)
    begun = played.records[0]
    assert isinstance(begun, RunStarted)

    assert [(each.key, each.attachment.label) for each in begun.inputs] == [
        ("z.txt", "z.txt"),
        ("a.txt", "a.txt"),
    ]
    assert played.run.answer == "[('z.txt', '1'), ('a.txt', '2')]"
    assert played.replayed().held


def test_bytes_that_are_no_text_are_the_same_text_on_replay(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    path = tmp_path / "damaged.txt"
    path.write_bytes("naïve façade, über ".encode() + b"caf\xe9 bar\n")
    played = play(sandbox, [block("FINAL(repr(context))")], inputs=read_inputs([str(path)]))

    assert played.run.answer == repr("naïve façade, über caf\ufffd bar\n")
    assert played.replayed().held


def test_a_replay_without_the_bytes_says_which_are_missing(sandbox: WasmSandbox) -> None:
    played = play(sandbox, [block("FINAL(context)")], inputs=[given_text("the text")])
    elsewhere = Session(ledger=played.ledger, sandbox=sandbox)

    with elsewhere, pytest.raises(AttachmentNotFound) as caught:
        elsewhere.replay(played.run.run)

    assert hashlib.sha256(b"the text").hexdigest() in str(caught.value)


def test_a_ledger_in_a_file_keeps_attachments_itself(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        Session(ledger=SqliteLedger(tmp_path / "l.db"), attachments=MemoryAttachments())


# -- answers of host functions -----------------------------------------------------------------


def test_a_long_answer_is_kept_apart_from_the_record(sandbox: WasmSandbox) -> None:
    calls: list[int] = []

    @host_function(policy="read")
    def fetch(size: int) -> str:
        """Fetch a page."""
        calls.append(size)
        return "x" * size

    played = play(
        sandbox,
        [block("page = fetch(300_000)\nFINAL(len(page) + len(fetch(10)))")],
        functions=[fetch],
    )
    long, short = answers(played, "fetch")

    assert played.run.answer == "300010"
    assert long.reply_ref is not None
    assert (long.reply, long.reply_ref.byte_len) == (b"", 300_001)
    assert short.reply_ref is None
    assert recorded_bytes(played) < 10_000
    assert played.replayed().held
    assert calls == [300_000, 10]


# -- what programs keep ------------------------------------------------------------------------


def test_programs_keep_read_and_list_attachments(wasm_sandbox: WasmSandbox) -> None:
    played = play(
        wasm_sandbox,
        [
            block(
                "made = attachments.put('Straße', label='note')\n"
                "raw = attachments.put(bytes(range(256)), media_type='application/x-raw')\n"
                "print(made['id'], made['media_type'], made['byte_len'], raw['byte_len'])"
            ),
            block(
                "print(attachments.get(made['id']), attachments.get(raw)[:3])\n"
                "print([each.get('label') for each in attachments.ls()])"
            ),
            block("FINAL('done')"),
        ],
        grants=BOTH,
    )
    first, second, _ = finished(played)
    note = hashlib.sha256("Straße".encode()).hexdigest()

    assert first.stdout == f"{note} text/plain 7 256\n"
    assert second.stdout == "Straße b'\\x00\\x01\\x02'\n['note', None]\n"
    assert all(each.committed_at_epoch_ms is not None for each in held(played).references())
    assert played.replayed().held


def test_a_large_put_and_a_text_too_long_for_a_str(sandbox: WasmSandbox) -> None:
    """Four million bytes go in at once; as many as that of text come back as a `str`."""
    played = play(
        sandbox,
        [
            block("ref = attachments.put('y' * 4_000_000)\nprint(len(attachments.get(ref)))"),
            block("attachments.put(b'y' * 4_000_001)"),
            block("FINAL('done')"),
        ],
        grants=BOTH,
    )
    first, second, _ = finished(played)

    assert first.stdout == "4000000\n"
    assert second.failure is not None
    assert "at most 4,000,000 in one put" in second.failure.message
    assert played.replayed().held


@pytest.mark.parametrize(
    ("grants", "works"),
    [((), []), (BOTH[:1], ["get", "ls"]), (BOTH[1:], ["put"]), (BOTH, ["get", "ls", "put"])],
)
def test_programs_have_of_attachments_what_they_are_granted(
    sandbox: WasmSandbox, grants: tuple[str, ...], works: list[str]
) -> None:
    program = "FINAL(sorted(vars(attachments)) if 'attachments' in globals() else [])"

    assert play(sandbox, [block(program)], grants=grants).run.answer == json.dumps(
        works, separators=(",", ":")
    )


def test_a_program_cannot_read_what_another_session_keeps(sandbox: WasmSandbox) -> None:
    secret = hashlib.sha256(b"secret").hexdigest()
    attachments = MemoryAttachments()
    SessionAttachments(attachments, session_id="other").put(b"secret")
    programs = [
        f"try:\n    attachments.get({secret!r})\nexcept HostError as error:\n    print(error)",
        "FINAL('done')",
    ]
    model = ScriptedModel([ScriptedReply(text=block(each)) for each in programs])
    ledger = MemoryLedger()
    with Session(model=model, ledger=ledger, attachments=attachments, sandbox=sandbox) as session:
        run = session.run("?", grants=BOTH)
        records = list(records_of(ledger, run.run))

    printed = [each.stdout for each in records if isinstance(each, ProgramFinished)]
    assert printed[0] == f"attachment `{secret}` was not found\n"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("attachments.put(5)", "text or bytes can be kept, not int"),
        ("attachments.put('x', label=7)", "text is needed, not int"),
        ("attachments.put('x', media_type='nonsense')", "a media type looks like text/plain"),
        ("attachments.put('x', label='y' * 2000)", "at most 1000 characters"),
        ("attachments.get('../../etc/passwd')", "no slash or backslash"),
        ("attachments.get('\\0')", "printable ASCII"),
        ("attachments.get('0' * 64)", "was not found"),
        ("attachments.get(None)", "named by its id"),
        ("outputs[0]", "there are 0 kept outputs"),
    ],
)
def test_wrong_use_is_the_programs_own_error(
    wasm_sandbox: WasmSandbox, call: str, says: str
) -> None:
    played = play(wasm_sandbox, [block(call), block("FINAL(1)")], grants=BOTH)
    failure = finished(played)[0].failure

    assert failure is not None
    assert says in failure.message
    assert played.run.answered


def test_what_a_run_may_keep_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    run_attachments = RunAttachments(
        SessionAttachments(MemoryAttachments(), session_id="s"), grants=BOTH
    )
    for number in range(16):
        run_attachments.put(bytes([number]) * 4_000_000)
    with pytest.raises(UsageError, match="at most 64,000,000 bytes"):
        run_attachments.put(b"one more")

    monkeypatch.setattr("tallystick.runtime.context.attachments.PUT_COUNT_MAX", 16)
    with pytest.raises(UsageError, match="at most 16 attachments"):
        run_attachments.put(b"")


# -- pictures ----------------------------------------------------------------------------------


def picture(tmp_path: Path) -> str:
    path = tmp_path / "boat.png"
    path.write_bytes(PNG)
    return str(path)


def test_a_picture_goes_to_the_model_and_only_its_reference_into_the_record(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    model = ModelDouble(block("FINAL('a boat')"))
    played = play(sandbox, model, inputs=read_inputs([picture(tmp_path)]))
    begun = played.records[0]
    assert isinstance(begun, RunStarted)

    (image,) = model.requests[0].messages[1].images
    assert (image.media_type, image.data) == ("image/png", PNG)
    assert "boat.png (2 x 3)" in model.requests[0].messages[1].text
    (ref,) = begun.images
    assert (ref.id, ref.width, ref.height) == (hashlib.sha256(PNG).hexdigest(), 2, 3)
    assert not any(b"pixels" in encode_record(each) for each in played.records)
    assert begun.contexts == ()
    assert played.replayed().held


def test_a_picture_beside_a_text_leaves_the_text_as_it_is(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    inputs = [given_text("only this", name="a.txt"), *read_inputs([picture(tmp_path)])]
    played = play(sandbox, [block("FINAL(context)")], inputs=inputs)

    assert played.run.answer == "only this"
    assert played.replayed().held


def test_a_picture_whose_bytes_are_gone_fails_the_request_before_it_is_sent(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    class Forgetful(MemoryAttachments):
        def chunks(self, id: str) -> Any:
            raise AttachmentNotFound(id=id)

    model = ModelDouble(block("FINAL('a boat')"))
    with Session(
        model=model, ledger=MemoryLedger(), attachments=Forgetful(), sandbox=sandbox
    ) as session:
        run = session.run("?", inputs=read_inputs([picture(tmp_path)]))

    assert (run.stop, model.asked) == ("model_error", [])
    assert "was not found" in run.detail


def test_pictures_are_resolved_as_agreed() -> None:
    """No reference: left. Bytes there already: left. Otherwise read, with the stored type."""
    store = RunAttachments(SessionAttachments(MemoryAttachments(), session_id="s"))
    ref = store.keep(PNG, label="p")
    plain = Image(media_type="image/gif", data=b"GIF")
    there = Image(media_type="image/gif", data=b"other", ref=ref)
    bare = Image(media_type="image/jpeg", ref=ref)
    message = Message(role="user", part="p", text="", images=(plain, there, bare))

    (resolved,) = with_pictures((message,), store.read)

    assert resolved.images[:2] == (plain, there)
    assert resolved.images[2] == Image(media_type="image/png", data=PNG, ref=ref)
    missing = msgspec.structs.replace(bare, ref=msgspec.structs.replace(ref, id="0" * 64))
    with pytest.raises(AttachmentNotFound):
        with_pictures((msgspec.structs.replace(message, images=(plain, missing)),), store.read)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (PNG[:20], "cut off"),
        (PNG[:16] + b"\xff" * 8 + PNG[24:], "larger than any can be"),
        (b"%PDF-1.7\n\0", "neither text nor a picture"),
        (b"text\0with a NUL", "neither text nor a picture"),
        (b"", "empty"),
    ],
)
def test_what_is_neither_text_nor_a_picture_is_refused(
    tmp_path: Path, data: bytes, says: str
) -> None:
    path = tmp_path / "input"
    path.write_bytes(data)

    with pytest.raises(UsageError, match=says):
        read_inputs([str(path)])
