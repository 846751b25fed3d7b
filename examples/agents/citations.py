"""A long context: programs search it on the host, and the answer cites lines that were checked."""

import pathlib
import tempfile

import tallystick as tally

log = pathlib.Path(tempfile.mkdtemp()) / "harbour.log"
lines = [f"{day:04} Heron moored, nothing to report" for day in range(200_000)]
lines[123_456] = "3456 Marble Wren was towed in with a damaged propeller"
log.write_text("\n".join(lines))

run = tally.run(
    "Which vessel was towed in?",
    files=[log],
    model="scripted:examples/agents/citations.jsonl",
)
print(run)
for citation in run.citations:
    print(citation.lines, citation.quote)
