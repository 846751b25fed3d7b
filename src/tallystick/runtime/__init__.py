"""Drive runs: start, pay for, record, resume, fork and replay them, and serve their programs."""
