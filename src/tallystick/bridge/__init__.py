"""The bridge: programs outside this process ask models through a run, over a local socket."""
