"""Calls of programs: host functions, queries of models and child runs, live and from the record."""
