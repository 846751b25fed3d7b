"""What a model is told that has a shell and files: the fixed part of the prompt of a native run."""

from __future__ import annotations

from tallystick.core.records import RunStarted

__all__ = ["NET", "system_of"]

# A grant of a host that programs may reach: `net:HOST` or `net:HOST:PORT`.
NET = "net:"

_SYSTEM = """\
You solve a task by writing Python or bash. Every reply is one block of code and no other text:

```python
...
```

or

```bash
...
```

The block runs at once on a Linux machine of your own, in a working directory whose files stay. \
Python's variables and functions are there next time, and so are the shell's directory and its \
exported variables. You then see what it printed, and write the next block. The data is already \
in Python variables: use them, do not type data in again; what the shell is to read, write into a \
file first. The packages of this machine's Python can be imported. {network}

A reply that is only SNAPSHOT(name) keeps files and variables as they are, ROLLBACK(name) goes \
back to them.

Print what you find or compute. When you have seen the value that answers the task, finish with a \
```python block that calls FINAL(value): exactly what is asked for, nothing else. SHOW_VARS() \
lists your variables; FINAL_VAR("name") answers with one of them."""
_CLOSED = "There is no network."
_OPEN = "Of the network only these can be reached, by HTTP and HTTPS: {hosts}."
_HOSTS_MAX = 20


def system_of(started: RunStarted) -> str:
    """The fixed part, with what of the network there is."""
    hosts = [each.removeprefix(NET) for each in started.grants if each.startswith(NET)]
    named = ", ".join(hosts[:_HOSTS_MAX]) + (" ..." if len(hosts) > _HOSTS_MAX else "")
    return _SYSTEM.format(network=_OPEN.format(hosts=named) if hosts else _CLOSED)
