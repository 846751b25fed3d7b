"""The agent: a model with its tools, instructions and limits as one object, which starts runs."""
