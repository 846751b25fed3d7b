"""Provide what all stores need: files, locks, owners, the clock, and differences of systems."""
