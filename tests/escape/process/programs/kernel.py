"""Programs that turn to the kernel: mounts, namespaces, devices, and its less known doors."""
# ruff: noqa: E501 - a program is read by its own lines, not by ours.

from tests.escape.process.case import python, shell

_FLAGS = "NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000\n"

MOUNTS = [
    shell("mount a tmpfs", "mkdir -p m; mount -t tmpfs none m && echo ESCAPED; echo over", "over"),
    shell(
        "bind the system over itself", "mount --bind /tmp /usr && echo ESCAPED; echo over", "over"
    ),
    shell(
        "make the system writable",
        "mount -o remount,rw /usr && echo ESCAPED; mount -o remount,rw,bind / && echo ESCAPED; echo over",
        "over",
    ),
    shell(
        "take mounts away",
        "umount /proc && echo ESCAPED; umount -l /session/work && echo ESCAPED; umount -l / && echo ESCAPED; echo over",
        "over",
    ),
    python(
        "by their numbers",
        "print(call(165, 0, b'/', 0, 0x4000 | 0x40000, 0), call(166, b'/proc', 2), call(155, b'.', b'.'))",
        "EPERM EPERM EPERM",
    ),
    python(
        "the new calls",
        "print([call(number, 0, 0, 0, 0, 0) for number in (428, 429, 430, 431, 432, 433, 442, 457, 458)])",
        str(["EPERM"] * 9),
    ),
    shell(
        "a disk of its own",
        "head -c 1M /dev/zero > disk; mkdir -p m; mount -o loop disk m && echo ESCAPED; losetup -f && echo ESCAPED; echo over",
        "over",
    ),
    shell("fuse", "ls /dev/fuse && echo ESCAPED; echo over", "over"),
    shell("swap", "head -c 1M /dev/zero > swap; swapon swap && echo ESCAPED; echo over", "over"),
]

NAMESPACES = [
    shell(
        "unshare",
        "unshare -Ur id -u && echo ESCAPED; unshare -m true && echo ESCAPED; unshare -n true && echo ESCAPED; echo over",
        "over",
    ),
    shell("nsenter", "nsenter -t 1 -a true && echo ESCAPED; echo over", "over"),
    python(
        "each kind",
        _FLAGS
        + "print([call(272, flag) for flag in (NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, 0x80)])",
        str(["EPERM"] * 8),
    ),
    python(
        "through clone",
        _FLAGS
        + "print([call(56, flag | 17, 0, 0, 0, 0) for flag in (NEWUSER, NEWNS, NEWPID, NEWNET, NEWUSER | NEWNS)])",
        str(["EPERM"] * 5),
    ),
    python("through clone3", "print(call(435, bytes(88), 88))", "ENOSYS"),
    python(
        "into that of another",
        "fd = os.open('/proc/self/ns/mnt', os.O_RDONLY)\nprint(call(308, fd, 0))",
        "EPERM",
    ),
    shell("the host's name", "hostname other && echo ESCAPED; echo over", "over"),
    shell(
        "control groups",
        "mkdir /sys/fs/cgroup/x && echo ESCAPED; ls /sys && echo ESCAPED; echo over",
        "over",
    ),
]

INTERFACES = [
    python(
        "keyrings",
        "print(call(250, 0, -3, 0), call(248, b'user', b'x', b'y', 1, -3), call(249, b'user', b'x', 0, 0))",
        "EPERM EPERM EPERM",
    ),
    python("bpf", "print(call(321, 0, bytes(64), 64))", "EPERM"),
    python("performance counters", "print(call(298, bytes(128), 0, -1, -1, 0))", "EPERM"),
    python(
        "io_uring",
        "print(call(425, 8, bytes(120)), call(426, 0, 0, 0, 0, 0), call(427, 0, 0, 0, 0))",
        "EPERM EPERM EPERM",
    ),
    python("userfaultfd", "print(call(323, 1))", "EPERM"),
    python(
        "modules",
        "print(call(175, 0, 0, 0), call(313, 0, 0, 0), call(176, b'x', 0))",
        "EPERM EPERM EPERM",
    ),
    python(
        "another kernel",
        "print(call(246, 0, 0, 0, 0), call(320, 0, 0, 0, 0, 0), call(169, 0xfee1dead, 672274793, 0x1234567, 0))",
        "EPERM EPERM EPERM",
    ),
    python(
        "the clock",
        "print(call(227, 0, bytes(16)), call(164, bytes(16), 0), call(159, bytes(208)))",
        "EPERM EPERM EPERM",
    ),
    python("input and output ports", "print(call(172, 3), call(173, 0, 1024, 1))", "EPERM EPERM"),
    python("the kernel's messages", "print(call(103, 3, bytes(64), 64))", "EPERM"),
    python("watching every file", "print(call(300, 0, 0))", "EPERM"),
    python("a personality", "print(call(135, 0x0040000))", "EPERM"),
    python(
        "calls that nobody knows",
        "print({call(number) for number in range(470, 600)})",
        "{'ENOSYS'}",
    ),
    python(
        "calls of another machine",
        "import subprocess, sys\ncode = 'import ctypes; ctypes.CDLL(None).syscall(ctypes.c_long(0x40000000 + 39))'\nprint(subprocess.run([sys.executable or 'python3', '-c', code]).returncode)",
        "-31",
    ),
    python(
        "taking the filter off",
        "print(call(157, 22, 0, 0, 0, 0), libc.prctl(21, 0, 0, 0, 0))",
        "EINVAL 2",
    ),
    python(
        "asking landlock for more",
        "print(call(446, 0, 0), tried(open, '/usr/landlock', 'w'))",
        "Error",
    ),
]

DEVICES = [
    shell(
        "disks",
        "ls /dev/sd* /dev/vd* /dev/nvme* /dev/dm-* /dev/loop* && echo ESCAPED; echo over",
        "over",
    ),
    shell(
        "make a disk",
        "mknod disk b 254 0 && echo ESCAPED; mknod mem c 1 1 && echo ESCAPED; echo over",
        "over",
    ),
    shell(
        "a terminal of the host",
        "ls /dev/tty /dev/pts /dev/console && echo ESCAPED; echo over",
        "over",
    ),
    python(
        "typing into a terminal",
        "import fcntl\nprint(call(16, 0, 0x5412, b'x'), call(16, 0, 0x541C, b'x'))",
        "EPERM EPERM",
    ),
    python(
        "a character device",
        "print(call(133, b'c', 0o020666, 0x101), call(259, -100, b'c2', 0o060666, 0xfe00))",
        "EPERM EPERM",
    ),
    shell(
        "virtual machines and graphics",
        "ls /dev/kvm /dev/dri /dev/vhost* /dev/net/tun && echo ESCAPED; echo over",
        "over",
    ),
]
