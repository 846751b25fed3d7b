"""How the keeper watches its box: the memory that it counts, and the priority to do so."""
