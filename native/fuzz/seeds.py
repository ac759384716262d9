#!/usr/bin/env python3
"""Writes the first inputs of the fuzz targets to corpus/: what this kernel answers about a pod network that is
made for it, its /proc files, and messages made by hand. Needs root, ip(8) and nft(8); run as
`unshare --net native/fuzz/seeds.py`. Inputs that fuzzing found stay as they are."""
import os
import pathlib
import socket
import struct
import subprocess

CORPUS = pathlib.Path(__file__).parent / "corpus"
POD = "0b7a1f6e-3f27-4a0e-9c39-2d6a4d1c0f11"
ROUTE, NETFILTER = 0, 12
REQUEST, ACK, DUMP, MULTI = 1, 4, 0x300, 2
ERROR, DONE = 2, 3
GETLINK, GETADDR, GETROUTE = 18, 22, 26
NFT = 10 << 8
GETCHAIN, GETRULE, GETSET, GETSETELEM = NFT | 4, NFT | 7, NFT | 10, NFT | 13


def save(target, name, data):
    path = CORPUS / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def message(kind, flags, sequence, payload=b""):
    return struct.pack("=IHHII", 16 + len(payload), kind, flags, sequence, 0) + payload


def attribute(kind, value):
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def conversation(datagrams):
    return b"".join(struct.pack("<H", len(each)) + each for each in datagrams)


class Kernel:
    """Asks as the helper does, numbering requests from 1."""

    def __init__(self, protocol):
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        self.socket.bind((0, 0))
        self.sequence = 0

    def dump(self, kind, payload):
        self.sequence += 1
        self.socket.send(message(kind, REQUEST | DUMP, self.sequence, payload))
        datagrams = []
        while True:
            # The port in an answer is that of the socket; 0 gives the same bytes each time.
            datagram = bytearray(self.socket.recv(65536))
            at, ended = 0, False
            while at < len(datagram):
                length, got = struct.unpack_from("=IH", datagram, at)
                struct.pack_into("=I", datagram, at + 12, 0)
                ended = ended or got in (ERROR, DONE)
                at += length + 3 & ~3
            datagrams.append(bytes(datagram))
            if ended:
                return datagrams


def messages_of(datagrams):
    for datagram in datagrams:
        at = 0
        while at < len(datagram):
            length, kind = struct.unpack_from("=IH", datagram, at)
            yield kind, datagram[at : at + length]
            at += length + 3 & ~3


def make_network():
    run = lambda *words: subprocess.run(words, check=True)
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "peer0")
    run("ip", "link", "add", "k6t-eth0", "type", "bridge")
    run("ip", "link", "set", "eth0", "master", "k6t-eth0", "up")
    run("ip", "link", "set", "k6t-eth0", "up")
    run("ip", "tuntap", "add", "tap0", "mode", "tap", "user", "107", "group", "107")
    run("ip", "addr", "add", "10.0.2.1/24", "dev", "k6t-eth0")
    run("ip", "addr", "add", "fd10:0:2::1/120", "dev", "k6t-eth0", "nodad")
    run("ip", "route", "add", "default", "via", "10.0.2.254")
    run("ip", "route", "add", "blackhole", "10.9.0.0/16")
    run("ip", "route", "add", "10.8.0.0/16", "via", "inet6", "fe80::1", "dev", "k6t-eth0")
    rules = """
      table ip nat {
        chain KUBEVIRT_PREINBOUND { tcp dport { 22, 80 } counter dnat to 10.0.2.2; udp dport 5000-5010 counter return; }
        chain prerouting {
          type nat hook prerouting priority -100; policy accept;
          iifname "eth0" counter jump KUBEVIRT_PREINBOUND
        }
        chain postrouting {
          type nat hook postrouting priority 100; policy accept;
          ip saddr 10.0.2.2 counter masquerade
        }
      }
      table ip6 nat { chain input { type nat hook input priority 100; policy accept; ip6 saddr ::1 counter snat to fd10:0:2::1; }; }
    """
    subprocess.run(["nft", "-f", "-"], input=rules.encode(), check=True)


def route_seeds():
    kernel = Kernel(ROUTE)
    link = struct.pack("=BBHiII", 0, 0, 0, 0, 0, 0)
    whole = []
    for kind, payload in (
        (GETLINK, link),
        (GETADDR, struct.pack("=BBBBI", socket.AF_INET, 0, 0, 0, 0)),
        (GETADDR, struct.pack("=BBBBI", socket.AF_INET6, 0, 0, 0, 0)),
        (GETROUTE, struct.pack("=BBBBBBBBI", socket.AF_INET, *([0] * 7), 0)),
        (GETROUTE, struct.pack("=BBBBBBBBI", socket.AF_INET6, *([0] * 7), 0)),
    ):
        answer = kernel.dump(kind, payload)
        whole += answer
        for i, (got, one) in enumerate(messages_of(answer)):
            if got != DONE and i < 4:
                save("net_record_fuzz", f"{kind}-{kernel.sequence}-{i}", one)
    save("net_observe_fuzz", "pod", conversation(whole))
    save("net_observe_fuzz", "done", conversation([message(DONE, MULTI, n, bytes(4)) for n in range(1, 6)]))
    # Changed during the first reading.
    again = [message(DONE, MULTI | 0x10, n, bytes(4)) for n in range(1, 2)]
    again += [message(DONE, MULTI, n, bytes(4)) for n in range(2, 7)]
    save("net_observe_fuzz", "interrupted", conversation(again))


def nft_seeds():
    kernel = Kernel(NETFILTER)
    table = lambda family, *attributes: struct.pack("=BBH", family, 0, 0) + b"".join(attributes)
    nat = lambda kind: attribute(kind, b"nat\0")
    whole = []
    for family in (socket.AF_INET, socket.AF_INET6):
        whole += (chains := kernel.dump(GETCHAIN, table(family)))
        whole += (sets := kernel.dump(GETSET, table(family, nat(1))))
        elements = []
        for kind, one in messages_of(sets):
            if kind == DONE:
                continue
            name = one[one.index(b"__set") :].split(b"\0")[0]
            elements += kernel.dump(GETSETELEM, table(family, nat(1), attribute(2, name + b"\0")))
        whole += elements
        whole += (rules := kernel.dump(GETRULE, table(family, nat(1))))
        for kind, answers in (("chain", chains), ("set", sets), ("elements", elements), ("rule", rules)):
            for i, (got, one) in enumerate(messages_of(answers)):
                if got != DONE:
                    save("net_nft_record_fuzz", f"{kind}-{family}-{i}", one)
    save("net_nft_fuzz", "pod", conversation(whole))
    save("net_nft_fuzz", "none", conversation([message(DONE, MULTI, n, bytes(4)) for n in (1, 2)]))


def reply_seeds():
    error = lambda sequence, code: message(ERROR, 0x100, sequence, struct.pack("=i", -code) + message(16, 5, sequence))
    each = message(16, MULTI, 1, attribute(3, b"eth0\0"))
    done = message(DONE, MULTI, 1, bytes(4))
    for name, request, datagrams in (
        ("acknowledged", 0, [error(1, 0)]),
        ("busy", 0, [error(1, 16)]),
        ("answered", 1, [each, error(1, 0)]),
        ("dumped", 2, [each + each, each, done]),
        ("interrupted", 2, [message(16, MULTI | 0x10, 1), done]),
        ("dump-failed", 2, [each, message(DONE, MULTI, 1, struct.pack("=i", -4))]),
        ("batch", 3, [error(2, 0)]),
        ("batch-failed", 3, [error(1, 17) + error(2, 17)]),
        ("no-errno", 0, [message(ERROR, 0x100, 1, struct.pack("=i", 5))]),
        ("least-errno", 2, [message(ERROR, 0x100, 1, struct.pack("=i", -(2**31)))]),
        ("another", 0, [error(7, 0), error(1, 0)]),
    ):
        save("net_socket_fuzz", name, bytes([request]) + conversation(datagrams))


def text_seeds():
    status = pathlib.Path("/proc/self/status").read_text()
    keep = ("Name", "Uid", "Gid", "Cap", "NoNewPrivs", "Seccomp:")
    save("thread_status_fuzz", "thread", "".join(l for l in status.splitlines(True) if l.startswith(keep)).encode())
    save("process_stat_fuzz", "self", pathlib.Path("/proc/self/stat").read_bytes())
    save("process_stat_fuzz", "kernel", pathlib.Path("/proc/2/stat").read_bytes())
    save("cpu_list_fuzz", "list", b"0-3,7\n")
    save("label_fuzz", "container", b"system_u:system_r:container_t:s0:c1,c2")
    save("cgroup_fuzz", "housekeeping", f"3:cpuset:/kubepods/pod{POD}/abc/housekeeping\n".encode())
    mounts = pathlib.Path("/proc/self/mountinfo").read_text().splitlines(True)
    save("mountinfo_fuzz", "host", "".join(mounts[:4]).encode())
    save("mountinfo_fuzz", "devtmpfs", b"23 26 0:6 / /dev rw,relatime shared:2 master:1 - devtmpfs devtmpfs rw\n")
    save("device_numbers_fuzz", "misc", b"234 btrfs-control\n 57 sev\n232 kvm\n")
    save("device_numbers_fuzz", "devices", b"Character devices:\n  1 mem\n511 vfio\n\nBlock devices:\n  7 loop\n")
    unit = POD.replace("-", "_")
    for name, line in (
        ("cgroupfs", f"0::/kubepods/burstable/pod{POD}/abc\n"),
        ("systemd", f"0::/kubepods.slice/kubepods-burstable-pod{unit}.slice/cri-containerd-abc.scope\n"),
        ("v1", f"4:memory:/kubepods/pod{POD}\n1:name=systemd:/kubepods/pod{POD}\n0::/\n"),
        ("namespaced", f"0::/../../kubepods-pod{unit}.slice/cri-abc.scope"),
    ):
        save("cgroup_fuzz", name, line.encode())
    for i, name in enumerate((POD, "container-disks", "vif-cache-eth0.json", "disk_12.sock", "disk_0.img", "a\nb\n..")):
        save("names_fuzz", str(i), name.encode())
    for i, (primary, prefix, text) in enumerate(
        ((1, 24, "eth0"), (0, 24, "net1"), (0, 0, "pod16477688c0e"), (0, 24, "10.0.2.0"), (0, 120, "fd10:0:2::"))
    ):
        save("net_plan_fuzz", str(i), bytes([primary, prefix]) + text.encode())


def event_seeds():
    event = lambda wd, mask, name: struct.pack("=iIII", wd, mask, 0, len(name)) + name
    save("inotify_fuzz", "events", event(1, 0x100, b"launcher-sock\0\0\0") + event(-1, 0x4000, b""))
    save("inotify_fuzz", "unterminated", event(1, 0x100, b"abcd"))
    for name, descriptors, flags, data in (
        ("one", 1, 0, b"\0"),
        ("refused", 0, 0, b"\x0d"),
        ("credentials", 1, 3, b"\0"),
        ("many", 17, 0, b"\0"),
        ("long", 1, 0, b"\0\0"),
        ("closed", 0, 0, b""),
    ):
        save("descriptor_answer_fuzz", name, bytes([descriptors, flags]) + data)
    for name, sockets, flags, data in (
        ("on", 3, 0, b"\1"),
        ("off", 1, 0, b"\0"),
        ("without-probe", 20, 2, b"\xff"),
        ("another-value", 1, 0, b"\2"),
        ("another-socket", 2, 1, b"\1"),
        ("long", 1, 0, b"\1\1"),
        ("no-socket", 0, 0, b"\1"),
    ):
        save("passt_repair_fuzz", name, bytes([sockets, flags]) + data)
    for name, descriptors, data in (("ticket", 0, bytes(range(32))), ("long", 0, bytes(64)), ("rights", 3, bytes(32)), ("empty", 0, b"")):
        save("descriptor_request_fuzz", name, bytes([descriptors]) + data)


if __name__ == "__main__":
    os.environ["LC_ALL"] = "C"
    make_network()
    route_seeds()
    nft_seeds()
    reply_seeds()
    text_seeds()
    event_seeds()
