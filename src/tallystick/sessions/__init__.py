"""Sessions: namespaces that outlive processes, their book, their snapshots, and runs in them."""
