"""`python -m tallystick`: the command line, where `tally` is not on the path."""

from __future__ import annotations

from tallystick.cli.main import main

if __name__ == "__main__":
    main()
