"""Skills: instructions with a manifest, found in layers, fitted into a catalog with evidence."""
