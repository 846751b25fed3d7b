"""Recall: which notes a reader sees, ranked by words and by meaning."""
