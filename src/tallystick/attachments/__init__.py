"""Bytes named by their digest: kept once, held by sessions, collected when nobody holds them."""
