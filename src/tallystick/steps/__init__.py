"""Steps: named parts of a host program with a budget, recorded, and resumed or replayed."""
