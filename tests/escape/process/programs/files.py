"""Programs that look for what is not theirs: other files, other processes, the host's names."""
# ruff: noqa: E501 - a program is read by its own lines, not by ours.

from tests.escape.process.case import python, shell

PROC = [
    shell(
        "the environment of the first process",
        "cat /proc/1/environ && echo ESCAPED; echo over",
        "over",
    ),
    shell(
        "the root of the first process",
        "ls /proc/1/root /proc/1/cwd && echo ESCAPED; echo over",
        "over",
    ),
    shell(
        "the descriptors of the first process",
        "ls -l /proc/1/fd && echo ESCAPED; echo over",
        "over",
    ),
    shell(
        "the root of any process",
        "for p in /proc/[0-9]*; do test -e $p/root/etc/shadow && echo ESCAPED; done; echo over",
        "over",
    ),
    shell(
        "the kernel's settings",
        "echo x > /proc/sys/kernel/core_pattern && echo ESCAPED; echo x > /proc/sysrq-trigger && echo ESCAPED; echo over",
        "over",
    ),
    shell(
        "the kernel's memory",
        "head -c 16 /proc/kcore && echo ESCAPED; head -c 16 /dev/mem && echo ESCAPED; cat /proc/kallsyms && echo ESCAPED; echo over",
        "over",
    ),
    shell(
        "what is mounted outside",
        "grep -E ' /(boot|var|srv) ' /proc/self/mountinfo && echo ESCAPED; echo over",
        "over",
    ),
    shell(
        "processes of the host",
        "n=$(ls -d /proc/[0-9]* | wc -l); test $n -gt 40 && echo ESCAPED; echo over",
        "over",
    ),
    shell(
        "another map of users",
        "echo '0 0 1' > /proc/self/uid_map && echo ESCAPED; echo over",
        "over",
    ),
    shell(
        "a place out of the kernel's sight",
        "echo -1000 > /proc/self/oom_score_adj && echo ESCAPED; echo over",
        "over",
    ),
    python("its own memory file", "f = open('/proc/self/mem', 'rb'); print('over')", "over"),
]

HOST_FILES = [
    shell(
        "shadow and keys",
        "cat /etc/shadow /etc/gshadow /etc/sudoers /etc/ssh/*_key && echo ESCAPED; echo over",
        "over",
    ),
    shell(
        "home directories",
        "ls /roo[t]/.ssh /home/*/.ssh /roo[t]/.bash_history && echo ESCAPED; echo over",
        "over",
    ),
    shell(
        "writing to the system",
        "for d in / /usr /usr/bin /etc /lib /bin /dev /proc /session; do touch $d/x 2>/dev/null && echo ESCAPED; done; echo over",
        "over",
    ),
    shell(
        "changing a program of the system",
        "echo x >> /bin/ls && echo ESCAPED; chmod 777 /usr/bin/env && echo ESCAPED; rm -f /usr/bin/env && echo ESCAPED; echo over",
        "over",
    ),
    shell(
        "sockets of the host",
        "ls /run /var/run /var/run/docker.sock && echo ESCAPED; echo over",
        "over",
    ),
    shell(
        "what the keeper keeps",
        "ls /.kept && echo ESCAPED; cat /.kept/store/* && echo ESCAPED; chmod 777 /.kept && echo ESCAPED; echo over",
        "over",
    ),
    shell(
        "temporary files of the host",
        "test $(ls -A /tmp | grep -vc '^mine$') -gt 0 && ls -A /tmp | grep -qv '^\\(mine\\|h\\|fill.*\\|d\\)$' && echo ESCAPED; echo over",
        "over",
    ),
    python(
        "a handle instead of a name",
        "print(call(303, -100, b'/etc/passwd', 0, 0, 0), call(304, 3, 0, 0))",
        "EPERM EPERM",
    ),
    python(
        "the directory above the root",
        "os.chdir('/')\nfor n in range(50): os.chdir('..')\nescaped_if(os.path.exists('etc/shadow'))",
        "refused",
    ),
    python("chroot and climb", "print(call(161, b'/tmp'))", "EPERM"),
]

LINKS = [
    shell(
        "a link to a file of the host",
        "ln -s /etc/shadow s; cat s && echo ESCAPED; ln -s /root r; ls r/.ssh && echo ESCAPED; echo over",
        "over",
    ),
    shell(
        "a link above everything",
        "ln -s ../../../../../../../../etc/shadow s2; cat s2 && echo ESCAPED; echo over",
        "over",
    ),
    shell(
        "writing through a link",
        "ln -s /usr/bin w; echo x > w/new && echo ESCAPED; ln -s /etc/passwd p; echo x >> p && echo ESCAPED; echo over",
        "over",
    ),
    shell(
        "a hard link to the system",
        "ln /bin/bash h && echo ESCAPED; ln /etc/passwd h2 && echo ESCAPED; echo over",
        "over",
    ),
    shell(
        "a hard link out of the overlay",
        "echo x > a; ln a /tmp/h && echo ESCAPED; ln a /dev/shm/h && echo ESCAPED; echo over",
        "over",
    ),
    shell(
        "a rename out of the overlay",
        "mkdir -p d; python3 -c \"import os; os.rename('d', '/tmp/d')\" && echo ESCAPED; echo over",
        "over",
    ),
    python(
        "a link through a descriptor",
        "fd = os.open('/etc/passwd', os.O_RDONLY)\nprint(tried(os.link, f'/proc/self/fd/{fd}', 'l'))",
        "Error",
    ),
    python(
        "the lower layer by its attributes",
        "open('x', 'w').close()\nprint([name for name in os.listxattr('x') if 'overlay' in name])",
        "[]",
    ),
    python(
        "a whiteout made by hand",
        "print(call(133, b'white', 0o020000, 0), call(259, -100, b'white2', 0o020000, 0))",
        "EPERM EPERM",
    ),
    python(
        "making a layer opaque",
        "os.makedirs('o', exist_ok=True)\nprint(tried(os.setxattr, 'o', 'trusted.overlay.opaque', b'y'))",
        "Error",
    ),
    shell("a link loop", "ln -s loop loop; cat loop && echo ESCAPED; echo over", "over"),
]

DISK = [
    shell(
        "the working directory",
        "head -c 200M /dev/zero > fill; test $(stat -c %s fill) -gt $((80*1024*1024)) && echo ESCAPED; rm -f fill; echo over",
        "over",
    ),
    shell(
        "the temporary directory",
        "head -c 200M /dev/zero > /tmp/fill; test $(stat -c %s /tmp/fill) -gt $((40*1024*1024)) && echo ESCAPED; rm -f /tmp/fill; echo over",
        "over",
    ),
    shell(
        "shared memory",
        "head -c 200M /dev/zero > /dev/shm/fill; test $(stat -c %s /dev/shm/fill) -gt $((40*1024*1024)) && echo ESCAPED; rm -f /dev/shm/fill; echo over",
        "over",
    ),
    python(
        "many small files",
        "made = 0\nos.makedirs('many', exist_ok=True)\ntry:\n    while made < 200_000: os.close(os.open(f'many/{made}', os.O_CREAT | os.O_WRONLY)); made += 1\nexcept OSError: pass\nimport shutil; shutil.rmtree('many')\nescaped_if(made > 5_000)",
        "refused",
        wall_ms=20_000,
    ),
    python(
        "a file with holes",
        "f = open('sparse', 'wb')\nprint(tried(f.truncate, 2**40)); f.close(); os.unlink('sparse')",
        "Error",
    ),
    python(
        "a file that has no name any more",
        "f = open('gone', 'wb'); os.unlink('gone'); n = 0\nimport signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\ntry:\n    while n < 2000: os.write(f.fileno(), bytes(1 << 20)); n += 1\nexcept OSError: pass\nescaped_if(n > 80)",
        "refused",
        wall_ms=20_000,
    ),
    python("memory files", "print(tried(os.memfd_create, 'm'))", "PermissionError"),
    python(
        "shared memory that no process holds",
        "print(call(29, 0, 1 << 30, 0o1600), call(68, 0, 0o1600), call(64, 0, 9, 0o1600))",
        "EPERM EPERM EPERM",
    ),
    shell("fallocate", "fallocate -l 2G big && echo ESCAPED; rm -f big; echo over", "over"),
]

ENVIRONMENT = [
    shell(
        "every variable",
        "env | grep -iE 'token|secret|key|canary' && echo ESCAPED; echo over",
        "over",
    ),
    shell(
        "variables of any process",
        "cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep -iE 'canary' && echo ESCAPED; echo over",
        "over",
    ),
    shell("the name of the host", "hostname", "box"),
    shell("who is there", "id -un; getent passwd | wc -l", "user"),
    python(
        "its own start",
        "print(open('/proc/self/environ').read().count('CANARY'), 'over')",
        "0 over",
    ),
]
