"""Steps: named scopes of a host program with a budget, recorded and run again on their record."""
