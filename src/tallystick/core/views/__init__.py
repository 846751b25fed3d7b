"""Views of a run or of two, computed from records alone."""
