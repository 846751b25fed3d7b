"""The names a run's programs find, made from what the run recorded.

Live and on replay the guest is told the same bytes, since both come from the record and from what
it names by digest.
"""

from __future__ import annotations

from collections.abc import Mapping

from tallystick.core.canonical import canonical, digest
from tallystick.core.records import RunStarted
from tallystick.sandbox.port import HostName, HostNames, HostTextName

__all__ = ["names_of"]


def names_of(started: RunStarted, values: Mapping[str, object]) -> HostNames:
    """The namespace of a run. `values` are its inputs, which the record names by their digests."""
    told = [
        started.functions,
        started.values,
        started.inputs,
        started.texts,
        started.views,
        started.files,
    ]
    return HostNames(
        key=digest(canonical(told)),
        functions=tuple(HostName(name=name, doc=doc) for name, doc in started.functions),
        texts=tuple(
            HostTextName(name=each.name, key=each.key, id=each.id, bytes=each.bytes)
            for each in started.texts
        ),
        values=values,
        answering=True,
        views=started.views,
        files=started.files,
    )
