"""The run machine: one event goes in, the next state and what to ask of the world come out."""
