"""The reference vectors of the execution types, value for value."""

import msgspec
import pytest

from tallystick.core.errors import InvalidLimit, InvalidName
from tallystick.sandbox.port import ExecutionContext, ExecutionResult, Limits
from tallystick.sandbox.snapshot import SnapshotId, check_snapshot_name
from tallystick.vocabulary.check import ValidationResult


def test_a_snapshot_keeps_its_name_and_session() -> None:
    snapshot = SnapshotId(id="I", name="test-snapshot", session_id="S", created_at=1)

    assert (snapshot.name, snapshot.session_id) == ("test-snapshot", "S")
    assert str(snapshot) == "test-snapshot:I"


def test_a_context_keeps_timeout_directory_and_environment() -> None:
    context = ExecutionContext(
        session_id="S", timeout_ms=60_000, working_dir="/home/user", env_vars={"FOO": "bar"}
    )

    assert context.timeout_ms == 60_000
    assert context.working_dir == "/home/user"
    assert context.env_vars == {"FOO": "bar"}


def test_the_defaults_of_a_context() -> None:
    context = ExecutionContext(session_id="S")

    assert context.timeout_ms == 30_000
    assert context.working_dir is None
    assert context.env_vars == {}
    assert context.capture_stdout
    assert context.capture_stderr
    assert context.max_output_bytes == 65_536
    assert context.cancellation_token is None
    assert context.session_token is None
    assert context.recursion_depth == 0


def test_setting_many_variables_merges_and_the_later_wins() -> None:
    context = ExecutionContext(session_id="S", env_vars={"A": "1", "B": "1"})

    assert context.with_env({"B": "2", "C": "2"}).env_vars == {"A": "1", "B": "2", "C": "2"}


def test_success_is_exit_code_zero() -> None:
    result = ExecutionResult.success("hello world")

    assert result.succeeded
    assert (result.stdout, result.exit_code) == ("hello world", 0)


def test_failure_keeps_stderr_and_exit_code() -> None:
    result = ExecutionResult.failure("error message", 1)

    assert not result.succeeded
    assert (result.stderr, result.exit_code) == ("error message", 1)


def test_a_timeout_keeps_the_partial_output() -> None:
    result = ExecutionResult.timeout("out", "err")

    assert not result.succeeded
    assert (result.exit_code, result.timed_out) == (-1, True)
    assert (result.stdout, result.stderr) == ("out", "err")


def test_exit_code_zero_with_a_timeout_is_no_success() -> None:
    assert not ExecutionResult(exit_code=0, timed_out=True).succeeded


def test_a_new_result_starts_with_nothing() -> None:
    result = ExecutionResult()

    assert result.execution_time_ms == 0
    assert not result.output_truncated
    assert result.output_file_path is None
    assert result.metadata == {}


def test_a_result_has_the_fields_that_the_command_line_promises() -> None:
    encoded = msgspec.json.decode(msgspec.json.encode(ExecutionResult()))

    assert {
        "stdout", "stderr", "value", "exit_code", "timed_out", "output_truncated",
        "output_file_path", "error", "stop", "charge", "calls", "metadata",
    } <= set(encoded)  # fmt: skip
    assert set(encoded["charge"]) == {
        "fuel", "wall_ms", "memory_bytes", "host_calls", "output_bytes",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["", "a/b", "a\\b", "..", "a..b", "a\0b", "x" * 257])
def test_a_snapshot_name_that_could_be_a_path_is_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        check_snapshot_name(name)


@pytest.mark.parametrize("name", ["a", "before the merge", "v1.2", "ümlaut", "x" * 256])
def test_an_ordinary_snapshot_name_is_taken(name: str) -> None:
    assert check_snapshot_name(name) == name


@pytest.mark.parametrize("field", Limits.__struct_fields__)
@pytest.mark.parametrize("value", [-1, 1.5, "10", True, None])
def test_a_limit_that_is_not_a_whole_number_is_an_error_that_names_it(
    field: str, value: object
) -> None:
    with pytest.raises(InvalidLimit, match=field):
        Limits(**{field: value})  # type: ignore[arg-type]


def test_a_valid_verdict_keeps_the_matched_terms() -> None:
    result = ValidationResult.valid(["python", "pip"])

    assert result.is_valid
    assert result.matched_terms == ("python", "pip")


def test_an_invalid_verdict_keeps_matched_and_unknown_terms() -> None:
    result = ValidationResult.invalid(["python"], ["foobar"])

    assert not result.is_valid
    assert result.matched_terms == ("python",)
    assert result.unknown_terms == ("foobar",)


def test_a_verdict_has_these_fields_and_defaults() -> None:
    encoded = msgspec.json.decode(msgspec.json.encode(ValidationResult.invalid(["a"], ["b"])))

    assert encoded == {
        "is_valid": False, "matched_terms": ["a"], "unknown_terms": ["b"], "suggestions": {},
        "strictness": "normal", "message": "", "retry_count": 0, "escalation_required": False,
    }  # fmt: skip


def test_the_feedback_message_byte_for_byte() -> None:
    result = ValidationResult(
        is_valid=False,
        matched_terms=("python", "pip"),
        unknown_terms=("foobar", 'say "hi"', "prüf\\ung", "two\nlines"),
        suggestions={"foobar": ("foo", "bar"), "prüf\\ung": ("pip",)},
        message="Use fewer terms.",
    )

    assert result.feedback().encode() == (
        b"Command validation warning:\n"
        b'  Unknown terms: ["foobar", "say \\"hi\\"", "pr\xc3\xbcf\\\\ung", "two\\nlines"]\n'
        b'  Known terms you could use: ["python", "pip"]\n'
        b'  Instead of \'foobar\', consider: ["foo", "bar"]\n'
        b"  Instead of 'pr\xc3\xbcf\\ung', consider: [\"pip\"]\n"
        b"  Use fewer terms.\n"
        b"Please rephrase to use only known domain terminology."
    )


def test_suggestions_are_told_in_the_order_of_their_terms() -> None:
    result = ValidationResult(is_valid=False, suggestions={"b": ("x",), "a": ("y",), "B": ("z",)})

    assert result.feedback() == (
        "Command validation warning:\n"
        "  Instead of 'B', consider: [\"z\"]\n"
        "  Instead of 'a', consider: [\"y\"]\n"
        "  Instead of 'b', consider: [\"x\"]\n"
        "Please rephrase to use only known domain terminology."
    )
