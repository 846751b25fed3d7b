"""Views: what the records of a run say, computed from them alone."""
