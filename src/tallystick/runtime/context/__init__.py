"""Context: what a run is given, and what its model is told of it."""
