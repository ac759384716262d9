"""What a program in some network namespace sees of the others, over IPv4 and IPv6.

traffic.py serve PORT...                  answers on TCP and UDP with the address of who asks; `ready` when it listens
traffic.py ask tcp|udp ADDRESS PORT TIMES asks, each time from another port; one answer, `refused` or `silent` a line
traffic.py ping ADDRESS SIZE...           sends one echo request of each size (whole packets, never fragmented) and
                                          waits until the last one is answered: {"answered": [SIZE...], "mtu": N}, or
                                          {"answered": [], "mtu": 0}
"""

import errno
import json
import os
import select
import socket
import struct
import sys
import time

IP_MTU_DISCOVER, IP_PMTUDISC_DO, IP_MTU = 10, 2, 14
IPV6_MTU_DISCOVER, IPV6_MTU = 23, 24
PATIENCE = 2.0


def answer(connection: socket.socket, sender: str) -> None:
    connection.settimeout(PATIENCE)
    try:
        connection.recv(64)
        connection.sendall(sender.removeprefix("::ffff:").encode())
    except OSError:
        pass  # Who asked has gone.


def serve(*ports: str) -> None:
    listeners, receivers = [], []
    for port in map(int, ports):
        listeners.append(socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True))
        receiver = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        receiver.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        receiver.bind(("::", port))
        receivers.append(receiver)
    print("ready", flush=True)
    while True:
        readable, _, _ = select.select([*listeners, *receivers, sys.stdin], [], [])
        if sys.stdin in readable:
            return
        for each in readable:
            if each in listeners:
                connection, sender = each.accept()
                with connection:
                    answer(connection, sender[0])
            else:
                _, sender = each.recvfrom(64)
                each.sendto(sender[0].removeprefix("::ffff:").encode(), sender)


def ask_once(kind: str, address: str, port: int) -> str:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM) as sock:
        sock.settimeout(PATIENCE)
        try:
            sock.connect((address, port))
            sock.send(b"who")
            return sock.recv(64).decode()
        except ConnectionRefusedError:
            return "refused"
        except (TimeoutError, OSError) as error:
            if isinstance(error, TimeoutError) or error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
                return "silent"
            raise


def checksum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total >> 16) + (total & 0xFFFF)
    return ~total & 0xFFFF


class Pinger:
    def __init__(self, address: str) -> None:
        self.v6 = ":" in address
        family, protocol = (
            (socket.AF_INET6, socket.IPPROTO_ICMPV6) if self.v6 else (socket.AF_INET, socket.IPPROTO_ICMP)
        )
        self.level = socket.IPPROTO_IPV6 if self.v6 else socket.IPPROTO_IP
        self.headers = 48 if self.v6 else 28
        self.ident = os.getpid() & 0xFFFF
        self.sock = socket.socket(family, socket.SOCK_RAW, protocol)
        self.sock.setsockopt(self.level, IPV6_MTU_DISCOVER if self.v6 else IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        self.sock.connect((address, 0))

    def send(self, sequence: int, size: int) -> None:
        """A request that is larger than the path is known to carry is left out."""
        kind = 128 if self.v6 else 8
        body = bytes(size - self.headers)
        unsummed = struct.pack("!BBHHH", kind, 0, 0, self.ident, sequence) + body
        request = struct.pack("!BBHHH", kind, 0, checksum(unsummed), self.ident, sequence) + body
        # The first error may be the answer to an earlier request.
        for _ in range(2):
            try:
                self.sock.send(request)
                return
            except OSError as error:
                if error.errno != errno.EMSGSIZE:
                    raise

    def receive(self, deadline: float) -> int | None:
        """Sequence of the next answer; none before the deadline."""
        while (left := deadline - time.monotonic()) > 0:
            self.sock.settimeout(left)
            try:
                packet = self.sock.recv(65536)
            except TimeoutError:
                return None
            except OSError as error:
                if error.errno != errno.EMSGSIZE:
                    raise
                continue
            header = 0 if self.v6 else (packet[0] & 0x0F) * 4
            kind, _, _, ident, sequence = struct.unpack("!BBHHH", packet[header : header + 8])
            if kind == (129 if self.v6 else 0) and ident == self.ident:
                return sequence
        return None

    def mtu(self) -> int:
        return self.sock.getsockopt(self.level, IPV6_MTU if self.v6 else IP_MTU)


def ping(address: str, *sizes: str) -> None:
    answered: list[int] = []
    mtu = 0
    try:
        pinger = Pinger(address)
        for sequence, size in enumerate(map(int, sizes)):
            pinger.send(sequence, size)
        deadline = time.monotonic() + PATIENCE
        while (sequence := pinger.receive(deadline)) is not None:
            answered.append(int(sizes[sequence]))
            mtu = pinger.mtu()
            if sequence == len(sizes) - 1:
                break
        else:
            answered = []
    except OSError as error:
        if error.errno not in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL):
            raise
        answered = []
    print(json.dumps({"answered": answered, "mtu": mtu}))


def main(verb: str, *words: str) -> None:
    if verb == "serve":
        serve(*words)
    elif verb == "ask":
        kind, address, port, times = words
        for _ in range(int(times)):
            print(ask_once(kind, address, int(port)))
    else:
        ping(*words)


main(*sys.argv[1:])
