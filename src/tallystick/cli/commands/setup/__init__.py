"""The commands that set tallystick up on a machine."""
