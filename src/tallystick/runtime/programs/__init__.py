"""Where programs run: the sandbox that a run has, and the native one with its files."""
