"""Read and write formats of others: trajectories, rlms logs, error codes."""
