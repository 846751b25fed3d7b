"""Run the command line as `python -m tallystick`, for systems where `tally` is not on the path."""

from __future__ import annotations

from tallystick.cli.main import main

if __name__ == "__main__":
    main()
