"""Receipts of recalls and of forgetting: issued, kept, and checked by anybody with a key."""
