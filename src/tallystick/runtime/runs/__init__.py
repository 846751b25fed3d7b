"""Find, read, count and lock recorded runs. Nothing here drives a run."""
