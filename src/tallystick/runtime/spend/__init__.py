"""Spending: the scopes that pay for a run, the one door to a model, places for child runs."""
