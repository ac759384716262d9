"""Attaches a device program, instructions on standard input, to a cgroup of version 2, as runtimes and systemd do.

usage: attach-program.py CGROUP alone|beside: in the place of the cgroup's own, or beside those of cgroups below.
"""
import ctypes
import os
import struct
import sys

SYS_BPF = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
PROG_LOAD, PROG_ATTACH = 5, 8
PROG_TYPE_CGROUP_DEVICE, CGROUP_DEVICE = 15, 6
FLAGS = {"alone": 0, "beside": 2}
libc = ctypes.CDLL(None, use_errno=True)


def bpf(command, attribute):
    buffer = ctypes.create_string_buffer(attribute.ljust(128, b"\0"), 128)
    result = libc.syscall(SYS_BPF, command, buffer, 128)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


instructions = ctypes.create_string_buffer(sys.stdin.buffer.read())
license_text = ctypes.create_string_buffer(b"GPL")
count = (len(instructions) - 1) // 8
program = bpf(
    PROG_LOAD,
    struct.pack("=IIQQ", PROG_TYPE_CGROUP_DEVICE, count, ctypes.addressof(instructions), ctypes.addressof(license_text)),
)
cgroup = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
bpf(PROG_ATTACH, struct.pack("=IIII", cgroup, program, CGROUP_DEVICE, FLAGS[sys.argv[2]]))
