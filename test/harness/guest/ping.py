"""Sends ICMP echo requests from the calling network namespace; ends with 0 at the first answer.

ping.py ADDRESS [ATTEMPTS [SECONDS_EACH]]
"""

import os
import socket
import struct
import sys


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def main(address: str, attempts: int = 1, timeout: float = 1.0) -> int:
    ident = os.getpid() & 0xFFFF
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as sock:
        sock.settimeout(timeout)
        for sequence in range(attempts):
            body = b"virt-privsep-ping"[:16]
            unsummed = struct.pack("!BBHHH", 8, 0, 0, ident, sequence) + body
            request = struct.pack("!BBHHH", 8, 0, checksum(unsummed), ident, sequence) + body
            try:
                sock.sendto(request, (address, 0))
                while True:
                    packet, (source, _) = sock.recvfrom(2048)
                    header = (packet[0] & 0x0F) * 4
                    kind, _, _, got, _ = struct.unpack("!BBHHH", packet[header : header + 8])
                    if kind == 0 and got == ident and source == address:
                        return 0
            except OSError:
                continue
    return 1


sys.exit(main(sys.argv[1], *map(int, sys.argv[2:4])))
