"""Keep attachments: bytes stored once under their digest, until no holder keeps them."""
