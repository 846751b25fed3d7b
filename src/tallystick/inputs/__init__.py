"""The data of a run: files and texts, how they are laid out for programs, and cited."""
