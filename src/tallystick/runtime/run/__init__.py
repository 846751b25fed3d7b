"""One run: put together, driven, resumed, replayed, forked, and its children."""
