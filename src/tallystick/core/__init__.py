"""The pure part: it computes the next thing to do and never does it."""
