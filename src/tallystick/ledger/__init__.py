"""The record of every run: the port, a file and a double behind it, verify, export and import."""
