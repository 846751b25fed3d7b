"""Maintain what is stored: verify, prune, transfer, and erase notes wherever they left traces."""
