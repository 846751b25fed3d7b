"""The process sandbox: native Python and bash with files, behind what the Linux kernel offers."""
