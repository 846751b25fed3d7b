"""Formats of other systems: trajectories, logs of rlms, error codes, reference catalogs."""
