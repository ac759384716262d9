"""A guest without a machine: opens taps of a pod as QEMU does and carries their frames to links of a network
namespace of its own, where the kernel stands for the guest's.

tap-guest.py USER [TAP LINK QUEUES]...    TAP: name of a tap, or path of a macvtap's device

Starts as root in the pod's network namespace and opens the taps as USER. Prints `ready` when every LINK is
there, in the namespace that the process is in from then on, and `queue TAP N` at the first frame that the pod
sends through a queue of a tap. Ends with its standard input.
"""

import ctypes
import errno
import fcntl
import os
import select
import struct
import sys

TUNSETIFF = 0x400454CA
IFF_TAP = 0x0002
IFF_MULTI_QUEUE = 0x0100
IFF_NO_PI = 0x1000
IFF_VNET_HDR = 0x4000
CLONE_NEWNET = 0x40000000
# A frame of the largest MTU with its virtio header.
MAX_FRAME = 65536 + 64


def open_tap(name: str, user: int, multi_queue: bool) -> int:
    is_macvtap = name.startswith("/")
    how = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
    # Who opens a tap is asked by TUNSETIFF, who opens a macvtap by the device's permissions.
    fd = -1 if is_macvtap else os.open("/dev/net/tun", how)
    flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | (IFF_MULTI_QUEUE if multi_queue else 0)
    os.setegid(user)
    os.seteuid(user)
    try:
        if is_macvtap:
            fd = os.open(name, how)
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", b"" if is_macvtap else name.encode(), flags))
    finally:
        os.seteuid(0)
        os.setegid(0)
    return fd


def forward(source: int, sink: int) -> None:
    """Carries one frame. A link that is down or full loses it, as a wire would."""
    frame = os.read(source, MAX_FRAME)
    try:
        os.write(sink, frame)
    except OSError as error:
        if error.errno not in (errno.EIO, errno.EAGAIN, errno.ENOBUFS, errno.EINVAL):
            raise


def main(user: int, *words: str) -> None:
    nics = [(words[i], words[i + 1], int(words[i + 2])) for i in range(0, len(words), 3)]
    taps = {tap: [open_tap(tap, user, queues > 1) for _ in range(queues)] for tap, _, queues in nics}
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    sinks: dict[int, int] = {}
    unused: dict[int, str] = {}
    for tap, link, _ in nics:
        outer, inner = taps[tap], open_tap(link, 0, False)
        sinks[inner] = outer[0]
        sinks.update({fd: inner for fd in outer})
        unused.update({fd: f"queue {tap} {queue}" for queue, fd in enumerate(outer)})
    poll = select.poll()
    for fd in (0, *sinks):
        poll.register(fd, select.POLLIN)
    print("ready", flush=True)
    while True:
        for fd, _ in poll.poll():
            if fd == 0:
                return
            if fd in unused:
                print(unused.pop(fd), flush=True)
            forward(fd, sinks[fd])


main(int(sys.argv[1]), *sys.argv[2:])
