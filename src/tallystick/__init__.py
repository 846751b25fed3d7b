"""Tallystick: a runtime for agents that act by writing code."""
