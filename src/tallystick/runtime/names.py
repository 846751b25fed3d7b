"""The names a run's programs find, made from what the run recorded.

Live and on replay the guest is told the same bytes, since both come from the record: a dictionary
that was sorted on its way through the ledger would otherwise be in another order the second time.
"""

from __future__ import annotations

from tallystick.core.canonical import canonical, digest
from tallystick.core.records import RunStarted
from tallystick.sandbox.port import HostName, HostNames, HostTextName

__all__ = ["names_of"]


def names_of(started: RunStarted) -> HostNames:
    """The namespace of a run."""
    return HostNames(
        key=digest(
            canonical(
                [started.functions, started.values, started.texts, started.views, started.files]
            )
        ),
        functions=tuple(HostName(name=name, doc=doc) for name, doc in started.functions),
        texts=tuple(
            HostTextName(name=each.name, key=each.key, id=each.id, bytes=each.bytes)
            for each in started.texts
        ),
        values=started.values,
        answering=True,
        views=started.views,
        files=started.files,
    )
