"""The tables of a memory that follow from its log, and the version of what is put into them."""

from __future__ import annotations

from tallystick.memory import terms as ranking_terms

__all__ = ["OPEN", "PROJECTION", "PROJECTION_SCHEMA", "PROJECTION_TABLES"]

# What made the rows: another word here, and a store that is opened builds them again.
PROJECTION = f"3 {ranking_terms.VERSION}"
# The end of what has not ended. Beyond every place.
OPEN = (1 << 62) - 1

PROJECTION_SCHEMA = (
    """CREATE TABLE note (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL, agent_id TEXT NOT NULL,
        memory_type TEXT NOT NULL, scope TEXT NOT NULL, author TEXT, thread_id TEXT,
        position INTEGER, org_id TEXT, created_by TEXT, session_id TEXT, source_type TEXT NOT NULL,
        key TEXT, created_at INTEGER NOT NULL, valid_from INTEGER NOT NULL, chars INTEGER NOT NULL,
        same BLOB, redacted INTEGER NOT NULL
    )""",
    "CREATE UNIQUE INDEX note_id ON note (id)",
    "CREATE INDEX note_same ON note (same) WHERE same IS NOT NULL",
    "CREATE INDEX note_key ON note (agent_id, key) WHERE key IS NOT NULL",
    "CREATE INDEX note_thread ON note (thread_id, position) WHERE thread_id IS NOT NULL",
    "CREATE INDEX note_agent ON note (agent_id)",
    # The entries about a note after the one that is its number.
    "CREATE TABLE later (number INTEGER NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (number, seq)) "
    "WITHOUT ROWID",
    """CREATE TABLE state (
        number INTEGER NOT NULL, seq_from INTEGER NOT NULL, seq_to INTEGER NOT NULL,
        body_seq INTEGER NOT NULL, importance REAL NOT NULL, valid_to INTEGER, expires_at INTEGER,
        deleted_at INTEGER, state TEXT NOT NULL, quarantine TEXT NOT NULL,
        PRIMARY KEY (number, seq_from)
    ) WITHOUT ROWID""",
    "CREATE TABLE tag (tag TEXT NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (tag, number)) "
    "WITHOUT ROWID",
    "CREATE INDEX tag_number ON tag (number)",
    """CREATE TABLE relation (
        number INTEGER NOT NULL, seq_from INTEGER NOT NULL, relation TEXT NOT NULL,
        target TEXT NOT NULL, weight REAL NOT NULL,
        PRIMARY KEY (number, relation, target, seq_from)
    ) WITHOUT ROWID""",
    "CREATE INDEX relation_target ON relation (target)",
    """CREATE TABLE share (
        number INTEGER NOT NULL, agent_id TEXT NOT NULL, seq_from INTEGER NOT NULL,
        seq_to INTEGER NOT NULL, permission TEXT NOT NULL,
        PRIMARY KEY (number, agent_id, seq_from)
    ) WITHOUT ROWID""",
    """CREATE TABLE sighting (
        number INTEGER NOT NULL, seq INTEGER NOT NULL, at INTEGER NOT NULL,
        PRIMARY KEY (number, seq)
    ) WITHOUT ROWID""",
    """CREATE TABLE access (
        number INTEGER NOT NULL, seq INTEGER NOT NULL, at INTEGER NOT NULL,
        PRIMARY KEY (number, seq)
    ) WITHOUT ROWID""",
    "CREATE TABLE erased (number INTEGER PRIMARY KEY, id TEXT NOT NULL, seq INTEGER)",
    "CREATE UNIQUE INDEX erased_id ON erased (id)",
    "CREATE TABLE origin (origin TEXT PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE exported (seq INTEGER PRIMARY KEY)",
    "CREATE TABLE forgetting (seq INTEGER PRIMARY KEY)",
    # Receipts of recalls and forgettings, one chain: where each stands, its id and its hash.
    "CREATE TABLE receipt (number INTEGER PRIMARY KEY, seq INTEGER NOT NULL, read_id TEXT NOT NULL,"
    " hash TEXT NOT NULL)",
    "CREATE INDEX receipt_read_id ON receipt (read_id)",
    "CREATE TABLE model "
    "(seq INTEGER PRIMARY KEY, digest TEXT NOT NULL, dimensions INTEGER NOT NULL)",
    # What ranking counts of each note, and the index over it.
    "CREATE TABLE told (number INTEGER PRIMARY KEY, terms TEXT NOT NULL)",
    "CREATE VIRTUAL TABLE words USING fts5"
    "(terms, content='told', content_rowid='number', columnsize=0, detail=none, "
    "tokenize=\"ascii tokenchars '_'\")",
)
# Every table above that has rows of its own, with the order to compare them in.
PROJECTION_TABLES = {
    "note": "number",
    "later": "number, seq",
    "state": "number, seq_from",
    "tag": "tag, number",
    "relation": "number, relation, target, seq_from",
    "share": "number, agent_id, seq_from",
    "sighting": "number, seq",
    "access": "number, seq",
    "erased": "number",
    "origin": "origin",
    "exported": "seq",
    "forgetting": "seq",
    "receipt": "number",
    "model": "seq",
    "told": "number",
}
