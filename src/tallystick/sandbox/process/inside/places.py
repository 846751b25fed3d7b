"""Where things are in a box, and who a program is there."""

from __future__ import annotations

__all__ = ["FILES", "HOME", "KEPT", "STORE", "USER", "WORK"]

# Who a program is, in the box. Outside, it is the host's user, or nobody if that is root.
USER = 1_000
# Not /home: what is bound to be read may lie there.
HOME = "/session"
WORK = f"{HOME}/work"
# Closed even to its owner, on a root that cannot be changed: only the keeper's capabilities get in.
KEPT = "/.kept"
STORE = f"{KEPT}/store"
FILES = f"{KEPT}/files"
