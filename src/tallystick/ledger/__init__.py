"""Store the records of every run: the port, its two backends, verification, export and import."""
