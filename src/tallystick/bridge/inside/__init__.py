"""Ask the bridge from inside a sandbox, on the standard library alone."""
