"""The floor under all stores: files, locks, owners, the clock, and what systems differ in."""
