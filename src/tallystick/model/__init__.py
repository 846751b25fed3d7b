"""Call models: one port, and the backends that turn a prompt into a reply."""
