"""Build the guest: from the prelude in `src/tallystick/guest` to one WebAssembly module."""
