"""Recall: find the notes that a reader sees and that fit a query, by words and by meaning."""
