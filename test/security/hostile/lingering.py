"""Sends what nobody asked for: a TCP socket with data that will never be taken, told to keep whoever closes it last
for half a minute (SO_LINGER). Then one byte without it. Says for the first what came of it, and nothing when the other
end has gone already.

connect TYPE PATH: over a connection that it makes. accepted: over the one that is its standard input.
"""

import errno
import socket
import struct
import sys

LINGER_SECONDS = 30

listener = socket.create_server(("127.0.0.1", 0))
lingering = socket.create_connection(listener.getsockname())
lingering.setblocking(False)
try:
    while True:
        lingering.send(bytes(1 << 16))
except BlockingIOError:
    pass
lingering.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_SECONDS))

if sys.argv[1] == "accepted":
    connection = socket.socket(fileno=0)
    connection.setblocking(True)
else:
    connection = socket.socket(socket.AF_UNIX, getattr(socket, sys.argv[2]))
    connection.connect(sys.argv[3])
try:
    socket.send_fds(connection, [b"x"], [lingering.fileno()])
    print("sent", flush=True)
except BrokenPipeError:
    sys.exit()
except OSError as error:
    print(errno.errorcode[error.errno], flush=True)
try:
    connection.send(b"x")
    # Until the other end has had enough of it.
    connection.recv(1)
except ConnectionError:
    pass
