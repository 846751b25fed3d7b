"""Programs that want out by wire. `{port}` is a port where the host really listens."""
# ruff: noqa: E501 - a program is read by its own lines, not by ours.

from tests.escape.process.case import python, shell

_CONNECT = """
import socket
def reach(host, port, family=socket.AF_INET):
    try:
        made = socket.socket(family, socket.SOCK_STREAM)
        made.settimeout(0.5)
        made.connect((host, port))
        return 'ESCAPED'
    except OSError as error:
        return 'refused'
"""

SOCKETS = [
    python(
        "the host's own port",
        _CONNECT + "print(reach('127.0.0.1', {port}), reach('::1', {port}, socket.AF_INET6))",
        "refused refused",
    ),
    shell(
        "bash's own device",
        "(exec 3<>/dev/tcp/127.0.0.1/{port}) && echo ESCAPED; (exec 3<>/dev/udp/127.0.0.1/53) && echo ESCAPED; echo over",
        "over",
    ),
    shell(
        "curl and wget",
        "curl -s -m 2 http://127.0.0.1:{port}/ && echo ESCAPED; wget -q -T 2 -t 1 -O - http://127.0.0.1:{port}/ && echo ESCAPED; echo over",
        "over",
    ),
    python(
        "every family",
        "import socket\nmade = []\nfor family in range(0, 46):\n    for kind in (1, 2, 3, 5):\n        try: socket.socket(family, kind).close(); made.append(family)\n        except OSError: pass\nprint(sorted(set(made)))",
        "[1]",
    ),
    python(
        "raw packets",
        "import socket\nprint(tried(socket.socket, socket.AF_PACKET, socket.SOCK_RAW), tried(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1))",
        "OSError OSError",
    ),
    python(
        "netlink",
        "import socket\nprint(tried(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, 0))",
        "OSError",
    ),
    python(
        "a virtual machine's socket",
        "import socket\nprint(tried(socket.socket, 40, socket.SOCK_STREAM))",
        "OSError",
    ),
    python(
        "an abstract name of the host",
        "import socket\nwith socket.socket(socket.AF_UNIX) as made:\n    try: made.connect('\\0{name}'); print('ESCAPED')\n    except OSError: print('refused')",
        "refused",
    ),
    python(
        "a socket of the host by its path",
        "import socket\nwith socket.socket(socket.AF_UNIX) as made:\n    try: made.connect('{path}'); print('ESCAPED')\n    except OSError: print('refused')",
        "refused",
    ),
    python(
        "a descriptor that was left open",
        "import socket, stat\nfound = [fd for fd in range(3, 256) if tried(os.fstat, fd) != 'OSError' and stat.S_ISSOCK(os.fstat(fd).st_mode)]\nreached = []\nfor fd in found:\n    with socket.socket(fileno=os.dup(fd)) as made:\n        if made.family != socket.AF_UNIX: reached.append(fd)\nescaped_if(reached)",
        "refused",
    ),
    python(
        "listening for others",
        "import socket\nprint(tried(lambda: socket.create_server(('0.0.0.0', 0))))",
        "OSError",
    ),
]

DNS = [
    python(
        "getaddrinfo",
        "import socket\ntry: socket.getaddrinfo('example.com', 80); print('ESCAPED')\nexcept OSError: print('refused')",
        "refused",
    ),
    python(
        "gethostbyname",
        "import socket\ntry: socket.gethostbyname('one.one.one.one'); print('ESCAPED')\nexcept OSError: print('refused')",
        "refused",
    ),
    python(
        "a packet by hand",
        "import socket\ntry:\n    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); made.sendto(b'x', ('8.8.8.8', 53)); print('ESCAPED')\nexcept OSError: print('refused')",
        "refused",
    ),
    shell("getent", "timeout 3 getent hosts example.com && echo ESCAPED; echo over", "over"),
    shell(
        "a resolver of its own",
        "echo 'nameserver 8.8.8.8' > /etc/resolv.conf && echo ESCAPED; cat /etc/resolv.conf | grep -q nameserver && echo ESCAPED; echo over",
        "over",
    ),
]

METADATA = [
    shell(
        "the link-local address",
        "curl -s -m 2 http://169.254.169.254/latest/meta-data/ && echo ESCAPED; (exec 3<>/dev/tcp/169.254.169.254/80) && echo ESCAPED; echo over",
        "over",
    ),
    python(
        "in its other spellings",
        _CONNECT
        + "print([reach(each, 80) for each in ('169.254.169.254', '0xa9fea9fe', '2852039166', '0251.0376.0251.0376')])",
        str(["refused"] * 4),
    ),
    python(
        "over IPv6",
        _CONNECT
        + "print([reach(each, 80, socket.AF_INET6) for each in ('fd00:ec2::254', '::ffff:169.254.169.254')])",
        str(["refused"] * 2),
    ),
    shell(
        "by name",
        "curl -s -m 2 http://metadata.google.internal/ && echo ESCAPED; echo over",
        "over",
    ),
    python(
        "private addresses",
        _CONNECT
        + "print([reach(each, 80) for each in ('10.0.0.1', '172.17.0.1', '192.168.0.1', '100.100.100.200', '0.0.0.0')])",
        str(["refused"] * 5),
    ),
]
