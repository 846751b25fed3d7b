"""Settings: their values, sources and trust, and the model that a name stands for."""
