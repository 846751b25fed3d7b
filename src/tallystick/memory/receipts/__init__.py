"""Receipts of recalls and of forgetting: how they are issued, stored, cited and checked."""
