"""The demonstration: a corpus made from a seed, a question, and the recorded replies of a model."""
