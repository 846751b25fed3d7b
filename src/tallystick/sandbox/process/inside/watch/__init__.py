"""The keeper's watch over its box: count memory, and get the processor in time to do it."""
