"""The demonstration: a corpus made from a seed, a question, and what a real model replied to it."""
