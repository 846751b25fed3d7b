"""Find skills, check trust in them, fit them into a catalog, and serve them to runs."""
