"""The command `tally`: parse, call, render."""
