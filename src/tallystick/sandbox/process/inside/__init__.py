"""What runs in the launcher and in the box, on the standard library alone."""
