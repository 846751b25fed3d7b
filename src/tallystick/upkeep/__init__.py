"""Upkeep of what is stored: prune, transfer, and erase notes wherever they left traces."""
