"""Sessions: interpreter state that outlives processes, the book of sessions, and runs in them."""
