"""Read the files and texts of a run, lay them out for its programs, and cite them."""
