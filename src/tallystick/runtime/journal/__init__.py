"""The journal of a run: written, compared with the record, and the world that it speaks of."""
