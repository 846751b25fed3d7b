"""What a question costs when notes come by JSON tool calls, and when a program reads them.

Both ways are written out as the messages that would be sent, in one frame, and counted by one
tokenizer that is named. In the JSON way every note that was recalled is in the context, as the tool
gave it: id, content and score, which is the least that a tool can give. In the code way only the
program is, and what it printed.

`held` is the context at the end, each message once. `sent` is the sum of the requests: the context
is sent again with each of them, and most servers charge for that. `written` is what the model
writes, where a program is longer than a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tallystick.core.errors import UsageError
from tallystick.core.json_text import canonical
from tallystick.memory.code_mode.operations import RecallHit, emitted

Count = Callable[[str], int]
# Its role and its text.
Message = tuple[str, str]

# What a model has to be told of each way, once for a context.
JSON_TOOL = canonical(
    {
        "type": "function",
        "function": {
            "name": "recall",
            "description": "Recall the notes that fit a query best.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "What to look for."},
                    "k": {"type": "integer", "minimum": 1, "maximum": 100},
                },
                "required": ["query", "k"],
            },
        },
    }
).decode()
CODE_MANUAL = (
    "Write a Python program. recall(query, k) gives the notes that fit a query best, each with "
    "id, content and score; k is from 1 to 100. Only what is printed is seen."
)


class Recalled(msgspec.Struct, frozen=True, kw_only=True):
    """One recall that was made for a question, and what it gave."""

    query: str
    k: int
    hits: tuple[RecallHit, ...]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A question, the recalls made for it, and the program that made them.

    `printed` is what the program really printed. `answered` says that the program itself gave the
    answer, so that the model is not asked once more.
    """

    question: str
    recalls: tuple[Recalled, ...]
    program: str
    printed: str
    answer: str
    answered: bool = False

    @property
    def hits(self) -> tuple[RecallHit, ...]:
        """All that was recalled, in order and with repeats."""
        return tuple(hit for each in self.recalls for hit in each.hits)


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """A question worked through: what was sent and replied in turn, and the whole at the end."""

    requests: tuple[str, ...]
    replies: tuple[str, ...]
    held: str


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of a transcript: of the whole, of all requests, and of all replies."""

    held: int
    sent: int
    written: int


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One question, counted both ways.

    `records_seen` counts the hits of its recalls. Of these, `records_emitted` stand with their
    whole text in the context of the code way; in the JSON way it is all of them.
    """

    question: str
    json: Counted
    code: Counted
    records_seen: int
    records_emitted: int


class TokensTable(msgspec.Struct, frozen=True, kw_only=True):
    """Rows, their sum, and the tokenizer that counted."""

    tokenizer: str
    rows: tuple[Row, ...]
    total: Row

    @property
    def saved(self) -> float:
        """The part of what the JSON way sends that the code way does not. It can be below zero."""
        sent = self.total.json.sent
        return 1 - self.total.code.sent / sent if sent else 0.0

    def rendered(self) -> str:
        """The table as Markdown, its numbers counted by the named tokenizer."""
        lines = [
            f"Tokens by {self.tokenizer}.",
            "",
            "| question | JSON held | sent | written | code held | sent | written "
            "| records seen | emitted |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        lines += [_line(row) for row in (*self.rows, self.total)]
        return "\n".join(lines) + "\n"


def tokens_table(asked: Sequence[Asked], *, count: Count, tokenizer: str) -> TokensTable:
    """Count the same questions both ways. `tokenizer` is the name of what `count` counts with."""
    if not tokenizer.strip():
        raise UsageError("a count of tokens names its tokenizer")
    rows = tuple(_row(each, count) for each in asked)
    total = Row(
        question=f"all {len(rows)}",
        json=_sum([row.json for row in rows]),
        code=_sum([row.code for row in rows]),
        records_seen=sum(row.records_seen for row in rows),
        records_emitted=sum(row.records_emitted for row in rows),
    )
    return TokensTable(tokenizer=tokenizer, rows=rows, total=total)


def json_transcript(asked: Asked) -> Transcript:
    """A question when the model calls a tool: one call for each recall.

    The whole result of a call goes into the context before the next.
    """
    talk = _Talk([("tools", JSON_TOOL), ("user", asked.question)])
    for each in asked.recalls:
        arguments = {"query": each.query, "k": each.k}
        talk.reply(canonical({"name": "recall", "arguments": arguments}).decode())
        talk.tell("tool", canonical(each.hits).decode())
    talk.reply(asked.answer)
    return talk.transcript()


def code_transcript(asked: Asked) -> Transcript:
    """A question when the model writes a program, and is asked once more if that did not answer."""
    talk = _Talk([("system", CODE_MANUAL), ("user", asked.question)])
    talk.reply(asked.program)
    if asked.printed:
        talk.tell("user", asked.printed)
    if not asked.answered:
        talk.reply(asked.answer)
    return talk.transcript()


class _Talk:
    """Messages, as they come to be."""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages
        self._requests: list[str] = []
        self._replies: list[str] = []

    def reply(self, text: str) -> None:
        self._requests.append(_framed(self._messages))
        self._replies.append(text)
        self.tell("assistant", text)

    def tell(self, role: str, text: str) -> None:
        self._messages.append((role, text))

    def transcript(self) -> Transcript:
        return Transcript(
            requests=tuple(self._requests),
            replies=tuple(self._replies),
            held=_framed(self._messages),
        )


def _counted(transcript: Transcript, count: Count) -> Counted:
    return Counted(
        held=count(transcript.held),
        sent=sum(count(text) for text in transcript.requests),
        written=sum(count(text) for text in transcript.replies),
    )


def _row(asked: Asked, count: Count) -> Row:
    return Row(
        question=asked.question,
        json=_counted(json_transcript(asked), count),
        code=_counted(code_transcript(asked), count),
        records_seen=len(asked.hits),
        records_emitted=emitted(asked.hits, f"{asked.printed}\n{asked.answer}"),
    )


def _sum(figures: Sequence[Counted]) -> Counted:
    return Counted(
        held=sum(each.held for each in figures),
        sent=sum(each.sent for each in figures),
        written=sum(each.written for each in figures),
    )


def _framed(messages: Sequence[Message]) -> str:
    """Messages as one text. Both ways have the same frame, so it does not favour either."""
    return "".join(f"<|{role}|>\n{text}\n" for role, text in messages)


def _line(row: Row) -> str:
    question = " ".join(row.question.split()).replace("|", "\\|")
    cells = (
        *msgspec.structs.astuple(row.json),
        *msgspec.structs.astuple(row.code),
        row.records_seen,
        row.records_emitted,
    )
    return f"| {question} | " + " | ".join(f"{cell:,}" for cell in cells) + " |"
