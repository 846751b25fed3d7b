"""`tally skills`: the commands of skills."""
