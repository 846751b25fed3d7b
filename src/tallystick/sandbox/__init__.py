"""Sandboxes: the port for running programs, and the backends that implement it."""
