"""The launcher's DHCP server for one guest interface. Needs no capability: SO_BINDTODEVICE is open to all
since Linux 5.7 and the pod allows low ports.

dhcp-server.py LEASE, a JSON object with the members of DhcpLease in dhcp.ts. Prints `ready` once it listens,
then one line for every answer.
"""

import json
import socket
import struct
import sys

COOKIE = b"\x63\x82\x53\x63"
DISCOVER, OFFER, REQUEST, ACK, NAK, INFORM = 1, 2, 3, 5, 6, 8
# Infinite.
LEASE_SECONDS = 0xFFFFFFFF


def parse_options(data: bytes) -> dict[int, bytes]:
    options: dict[int, bytes] = {}
    at = 0
    while at < len(data) and data[at] != 255:
        if data[at] == 0:
            at += 1
            continue
        if at + 1 >= len(data):
            break
        length = data[at + 1]
        options[data[at]] = data[at + 2 : at + 2 + length]
        at += 2 + length
    return options


def option(code: int, value: bytes) -> bytes:
    return bytes([code, len(value)]) + value


def reply(request: bytes, kind: int, lease: dict) -> bytes:
    op, htype, hlen, _, xid, secs, flags = struct.unpack("!BBBBIHH", request[:12])
    ip = socket.inet_aton
    options = [option(53, bytes([kind])), option(54, ip(lease["server"]))]
    if kind != NAK:
        options += [
            option(51, struct.pack("!I", LEASE_SECONDS)),
            option(1, ip(lease["mask"])),
            option(26, struct.pack("!H", lease["mtu"])),
            option(12, lease["hostname"].encode()),
        ]
        if lease["gateway"]:
            options.append(option(3, ip(lease["gateway"])))
        if lease["routes"]:
            options.append(option(121, classless_routes(lease)))
        if lease["nameservers"]:
            options.append(option(6, b"".join(map(ip, lease["nameservers"]))))
        if lease["tftpServerName"]:
            options.append(option(66, lease["tftpServerName"].encode()))
        if lease["bootFileName"]:
            options.append(option(67, lease["bootFileName"].encode()))
    address = ip(lease["address"] if kind != NAK else "0.0.0.0")
    head = struct.pack("!BBBBIHH", 2, htype, hlen, 0, xid, secs, flags | 0x8000)
    return (
        head
        + request[12:16]
        + address
        + ip(next_server(lease) if kind != NAK else "0.0.0.0")
        + b"\0" * 4
        + request[28:44]
        + lease["tftpServerName"].encode()[:63].ljust(64, b"\0")
        + lease["bootFileName"].encode()[:127].ljust(128, b"\0")
        + COOKIE
        + b"".join(options)
        + b"\xff"
    )


def classless_routes(lease: dict) -> bytes:
    """RFC 3442. A client that knows this option ignores the router option, so the default route is here too."""
    routes = list(lease["routes"])
    if lease["gateway"]:
        routes.append({"network": "0.0.0.0", "prefixLength": 0, "gateway": lease["gateway"]})
    encoded = b""
    for route in routes:
        length = route["prefixLength"]
        significant = socket.inet_aton(route["network"])[: (length + 7) // 8]
        encoded += bytes([length]) + significant + socket.inet_aton(route["gateway"])
    return encoded


def next_server(lease: dict) -> str:
    try:
        socket.inet_aton(lease["tftpServerName"])
        return lease["tftpServerName"]
    except OSError:
        return lease["server"]


def answer_kind(options: dict[int, bytes], lease: dict) -> int | None:
    kind = options.get(53, b"\0")[:1]
    if kind == bytes([DISCOVER]):
        return OFFER
    if kind == bytes([REQUEST]):
        chosen = options.get(54)
        if chosen is not None and chosen != socket.inet_aton(lease["server"]):
            return None
        wanted = options.get(50)
        return ACK if wanted in (None, socket.inet_aton(lease["address"])) else NAK
    return ACK if kind == bytes([INFORM]) else None


def main(lease: dict) -> None:
    mac = bytes.fromhex(lease["mac"].replace(":", ""))
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, lease["interface"].encode() + b"\0")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    sock.bind(("0.0.0.0", 67))
    print("ready", flush=True)
    while True:
        request = sock.recv(2048)
        # Other guests' requests arrive too where the bridge leads out of the pod.
        if len(request) < 240 or request[0] != 1 or request[28:34] != mac or request[236:240] != COOKIE:
            continue
        kind = answer_kind(parse_options(request[240:]), lease)
        if kind is not None:
            sock.sendto(reply(request, kind, lease), ("255.255.255.255", 68))
            name = {OFFER: "offer", ACK: "ack", NAK: "nak"}[kind]
            print(f"{name} {lease['address']} to {lease['mac']}", flush=True)


main(json.loads(sys.argv[1]))
