"""Find the places in the data that an answer's words are from, and check what the answer claims."""
