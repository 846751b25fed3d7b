"""Vocabulary: the terms a program may use, and the verdict before it runs."""
