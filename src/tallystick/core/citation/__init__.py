"""Citations: where an answer's words stand in the data it is from."""
