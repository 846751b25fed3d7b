"""Sandboxes: one port, and the backends that run programs behind it."""
