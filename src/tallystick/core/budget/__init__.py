"""Budgets: nested scopes with limits, what is reserved in them and what they have spent."""
