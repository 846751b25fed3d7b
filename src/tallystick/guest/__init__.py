"""The guest: a Python interpreter as one WebAssembly module, and the tools that build it."""
