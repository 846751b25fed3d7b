"""Run the programs of a run: first, again on their record, or served; and choose their sandbox."""
