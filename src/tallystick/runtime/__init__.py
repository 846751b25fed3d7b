"""How one run is driven: given its context, paid for, recorded, called from programs, resumed."""
