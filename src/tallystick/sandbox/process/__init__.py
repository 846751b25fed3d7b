"""The process sandbox: native Python and bash with files, isolated by the Linux kernel."""
