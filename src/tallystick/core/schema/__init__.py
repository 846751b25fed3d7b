"""Check JSON values against a part of JSON Schema, and find JSON values in replies."""
