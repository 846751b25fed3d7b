"""Follow runs of any process, stop them, and decide about what they wait for."""
