#!/bin/sh
# Runs the tests of labelled taps (selinux_test.cc) under a Debian kernel that enforces a SELinux policy, in QEMU.
# usage: selinux_vm.sh [PROGRAM]: the test program, as run.sh builds it unless given
# Needs secilc besides what net_vm.sh needs. Ends with the program's status.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
program=${1:-${PRIVSEP_SANITIZED_BUILD:-$here/../../build/native-sanitized}/privsep_tests}
[ -x "$program" ] || "$here/run.sh" enforced_ >&2
files=$(mktemp -d)
trap 'rm -rf "$files"' EXIT
# Without and with the rule that container-selinux has and older policies lack.
secilc --policyvers=31 --output="$files/older" --filecontexts=/dev/null "$here/selinux/base.cil"
secilc --policyvers=31 --output="$files/stock" --filecontexts=/dev/null "$here/selinux/base.cil" "$here/selinux/dyntransition.cil"
NET_VM_FILES=$files NET_VM_BOOT='security=selinux selinux=1 enforcing=1' "$here/net_vm.sh" "$program" enforced_
