"""Doubles for tests: a model, a sandbox, and ledgers that stop where a test says.

They are behind the same ports as the real ones. Our own tests use them; nothing here is promised to
users yet, and no other package imports it.
"""
