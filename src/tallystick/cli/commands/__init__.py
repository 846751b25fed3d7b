"""The commands of `tally`, one module for each family."""
