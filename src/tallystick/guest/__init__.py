"""The guest: a Python interpreter as one WebAssembly module, and the Python inside it."""
