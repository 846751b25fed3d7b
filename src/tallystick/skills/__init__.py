"""Skills: found in layers, trusted, fitted into a catalog, given to runs and called by programs."""
