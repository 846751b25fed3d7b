"""`tally memory`, `remember`, `recall` and `forget`: the commands of memory."""
