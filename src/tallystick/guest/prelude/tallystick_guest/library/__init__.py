"""Parts of the standard library that this interpreter lacks, or that need another form here."""
