"""The default sandbox: full CPython compiled to WebAssembly, in this process."""
