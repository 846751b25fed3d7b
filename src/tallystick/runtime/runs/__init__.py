"""Recorded runs: found, read, counted as trees, locked; never driven."""
