"""The store of a memory: one SQLite file with a log, and the tables that follow from it."""
