#!/bin/sh
# What udhcpc calls with what it was told (busybox, udhcpc --help). Prints the lease on one line.
[ "$1" = bound ] || exit 0
ip addr add "$ip/$mask" dev "$interface"
ip route add default via "$router"
echo "lease $ip/$mask via $router"
