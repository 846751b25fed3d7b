"""Every hostile program for the process sandbox, by its class."""

from tests.escape.process.case import Case
from tests.escape.process.programs import files, kernel, network, processes

CLASSES: dict[str, list[Case]] = {
    "fork bombs": processes.FORK_BOMBS,
    "background children": processes.BACKGROUND,
    "signals": processes.SIGNALS,
    "ptrace": processes.PTRACE,
    "setuid": processes.SETUID,
    "exhaustion": processes.EXHAUSTION,
    "harm to the interpreter": processes.INTERPRETER,
    "/proc": files.PROC,
    "host files": files.HOST_FILES,
    "links out of the overlay": files.LINKS,
    "disk filling": files.DISK,
    "environment": files.ENVIRONMENT,
    "mounts": kernel.MOUNTS,
    "namespaces": kernel.NAMESPACES,
    "kernel interfaces": kernel.INTERFACES,
    "devices": kernel.DEVICES,
    "sockets": network.SOCKETS,
    "DNS": network.DNS,
    "metadata addresses": network.METADATA,
}
