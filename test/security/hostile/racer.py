"""Changes an entry of a directory as fast as it can, until told to stop; then says how often it did.

swap A B: exchanges the two entries. plant PATH TARGET: makes a link to TARGET at PATH and removes what is there.
"""

import ctypes
import os
import signal
import sys

AT_FDCWD = -100
RENAME_EXCHANGE = 2

mode, first, second = sys.argv[1:4]
racing = True


def stop(*_):
    global racing
    racing = False


signal.signal(signal.SIGTERM, stop)
renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
a, b = first.encode(), second.encode()
changes = 0
print("racing", flush=True)
while racing:
    if mode == "swap":
        changes += renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) == 0
        continue
    try:
        os.symlink(second, first)
        changes += 1
    except FileExistsError:
        pass
    try:
        os.unlink(first)
    except OSError:
        pass
print(changes, flush=True)
