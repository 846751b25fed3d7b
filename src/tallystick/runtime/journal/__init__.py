"""The journal of a run, the cursor through its record, and the place where effects happen."""
