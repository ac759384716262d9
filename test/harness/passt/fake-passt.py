"""Stands in for passt(1) in a migration: listens on a repair socket and hands sockets over as it is told.

argv: directory and name of the socket, a process in the network namespace, number of TCP connections.
stdin: one JSON array a line, the value of TCP_REPAIR and what to hand over; end of file closes everything.
stdout: `ready`, then one JSON object for each exchange.
"""

import array
import ctypes
import json
import os
import socket
import struct
import subprocess
import sys

MAX_DESCRIPTORS = 253
CLONE_NEWNET = 0x40000000
TCP_REPAIR = 19

directory, name, netns_pid, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
libc = ctypes.CDLL(None, use_errno=True)


def must(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), "network namespace")


must(libc.unshare(CLONE_NEWNET))
foreign = socket.socket()
with open(f"/proc/{netns_pid}/ns/net", "rb") as netns:
    must(libc.setns(netns.fileno(), CLONE_NEWNET))
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)

tcp_listener = socket.create_server(("127.0.0.1", 0), backlog=128)
connections = []
accepted = []
for _ in range(count):
    connections.append(socket.create_connection(tcp_listener.getsockname()))
    accepted.append(tcp_listener.accept()[0])
os.makedirs(directory, exist_ok=True)
os.chdir(directory)
unix, _ = socket.socketpair()
of_file = open("a-file", "wb")
offers = {
    "tcp": connections,
    "file": [of_file],
    "unix": [unix],
    "udp": [socket.socket(socket.AF_INET, socket.SOCK_DGRAM)],
    "foreign": [connections[0], foreign] if connections else [foreign],
    "none": [],
}

repair = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
if os.path.exists(name):
    os.unlink(name)
repair.bind(name)
repair.listen(0)
print("ready", flush=True)


def hand_over(peer, value, descriptors):
    """One message and its answer: the bytes, and how many ancillary messages came with them."""
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
    peer.sendmsg([struct.pack("b", value)], [rights] if descriptors else [])
    try:
        data, ancillary, _, _ = peer.recvmsg(16, socket.CMSG_SPACE(64))
    except ConnectionResetError:
        return [], 0
    return list(struct.unpack(f"{len(data)}b", data)), len(ancillary)


peer = None
for line in sys.stdin:
    value, what = json.loads(line)
    if peer is None:
        peer, _ = repair.accept()
    descriptors = [each.fileno() for each in offers[what]]
    answers, ancillary = [], 0
    for at in range(0, max(len(descriptors), 1), MAX_DESCRIPTORS):
        data, came = hand_over(peer, value, descriptors[at : at + MAX_DESCRIPTORS])
        answers += data
        ancillary += came
    states = [each.getsockopt(socket.IPPROTO_TCP, TCP_REPAIR) for each in connections]
    print(json.dumps({"answers": answers, "ancillary": ancillary, "states": states}), flush=True)
