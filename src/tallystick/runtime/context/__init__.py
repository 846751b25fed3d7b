"""Hold the inputs, attachments and variables of a run."""
