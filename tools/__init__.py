"""Tools of this repository, used to build the package and never shipped in it."""
