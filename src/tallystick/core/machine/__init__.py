"""The run machine: one event goes in; the next state and the next intents come out."""
