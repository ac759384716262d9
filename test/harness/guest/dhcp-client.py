"""A guest's DHCP client: gets a lease for a link that has no address and prints it as JSON.

dhcp-client.py LINK SECONDS

Members: address, mask, router, server, mtu, hostname, routes ([[network, prefix length, gateway]...], RFC 3442).
Prints null when nobody has answered after SECONDS.
"""

import json
import os
import select
import socket
import struct
import sys
import time

COOKIE = b"\x63\x82\x53\x63"
DISCOVER, OFFER, REQUEST, ACK = 1, 2, 3, 5
MASK, ROUTER, HOSTNAME, MTU, REQUESTED, KIND, SERVER, WANTED, ROUTES = 1, 3, 12, 26, 50, 53, 54, 55, 121
REPEAT_SECONDS = 0.5


def hardware_address(link: str) -> bytes:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
        sock.bind((link, 0))
        return sock.getsockname()[4]


def parse_options(data: bytes) -> dict[int, bytes]:
    options: dict[int, bytes] = {}
    at = 0
    while at + 1 < len(data) and data[at] != 255:
        if data[at] == 0:
            at += 1
            continue
        options[data[at]] = data[at + 2 : at + 2 + data[at + 1]]
        at += 2 + data[at + 1]
    return options


def parse_routes(data: bytes) -> list[list[str | int]]:
    routes: list[list[str | int]] = []
    at = 0
    while at < len(data):
        length = data[at]
        size = (length + 7) // 8
        network = data[at + 1 : at + 1 + size].ljust(4, b"\0")
        gateway = data[at + 1 + size : at + 5 + size]
        routes.append([socket.inet_ntoa(network), length, socket.inet_ntoa(gateway)])
        at += 5 + size
    return routes


def request(transaction: bytes, mac: bytes, kind: int, *options: tuple[int, bytes]) -> bytes:
    head = struct.pack("!BBBB4sHH", 1, 1, 6, 0, transaction, 0, 0x8000) + bytes(16) + mac.ljust(16, b"\0") + bytes(192)
    wanted = bytes([MASK, ROUTER, HOSTNAME, MTU, ROUTES])
    encoded = [(KIND, bytes([kind])), (WANTED, wanted), *options]
    return head + COOKIE + b"".join(bytes([code, len(value)]) + value for code, value in encoded) + b"\xff"


def exchange(sock: socket.socket, message: bytes, answer: int, deadline: float) -> tuple[str, dict[int, bytes]] | None:
    """Asks until there is an answer of that kind."""
    while (left := deadline - time.monotonic()) > 0:
        sock.sendto(message, ("255.255.255.255", 67))
        repeat = time.monotonic() + min(left, REPEAT_SECONDS)
        while (wait := repeat - time.monotonic()) > 0:
            if not select.select([sock], [], [], wait)[0]:
                break
            reply = sock.recv(2048)
            if len(reply) < 240 or reply[0] != 2 or reply[4:8] != message[4:8]:
                continue
            options = parse_options(reply[240:])
            if options.get(KIND) == bytes([answer]):
                return socket.inet_ntoa(reply[16:20]), options
    return None


def main(link: str, seconds: str) -> None:
    deadline = time.monotonic() + float(seconds)
    mac = hardware_address(link)
    transaction = os.urandom(4)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, link.encode() + b"\0")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sock.bind(("0.0.0.0", 68))
        offer = exchange(sock, request(transaction, mac, DISCOVER), OFFER, deadline)
        if offer is None:
            print("null")
            return
        address, options = offer
        chosen = [(REQUESTED, socket.inet_aton(address)), (SERVER, options[SERVER])]
        lease = exchange(sock, request(transaction, mac, REQUEST, *chosen), ACK, deadline)
    if lease is None:
        print("null")
        return
    address, options = lease
    text = {code: socket.inet_ntoa(options[code][:4]) for code in (MASK, ROUTER, SERVER) if code in options}
    print(
        json.dumps(
            {
                "address": address,
                "mask": text.get(MASK, ""),
                "router": text.get(ROUTER, ""),
                "server": text.get(SERVER, ""),
                "mtu": struct.unpack("!H", options[MTU])[0],
                "hostname": options[HOSTNAME].decode(),
                "routes": parse_routes(options.get(ROUTES, b"")),
            }
        )
    )


main(*sys.argv[1:])
