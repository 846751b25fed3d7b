"""Settings: what is set, by whom and trusted how, and the model that a name stands for."""
