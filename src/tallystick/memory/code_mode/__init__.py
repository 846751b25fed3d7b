"""Recall programs: operations or Python, run against a memory under a budget."""
