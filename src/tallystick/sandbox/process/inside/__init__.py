"""The code that runs in the launcher and in the box. It uses only the standard library."""
