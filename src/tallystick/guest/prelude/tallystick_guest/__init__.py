"""The Python side of the guest: what surrounds a program inside the sandbox."""
