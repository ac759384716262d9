"""Changes an entry of a directory as fast as it can, until told to stop or as often as told to. Says when it
begins; at the end how often it did and what processor time that took, in seconds.

swap A B [TIMES]: exchanges the two entries. plant PATH TARGET [TIMES]: makes a link to TARGET at PATH and removes
what is there.
"""

import ctypes
import os
import signal
import sys
import time

AT_FDCWD = -100
RENAME_EXCHANGE = 2

mode, first, second = sys.argv[1:4]
times = int(sys.argv[4]) if len(sys.argv) > 4 else sys.maxsize
racing = True


def stop(*_):
    global racing
    racing = False


signal.signal(signal.SIGTERM, stop)
renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
a, b = first.encode(), second.encode()
changes = 0
print("racing", flush=True)
while racing and changes < times:
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
print(changes, time.process_time(), flush=True)
