"""Memory: notes kept across runs, ranked recall of them, receipts for it, and forgetting."""
