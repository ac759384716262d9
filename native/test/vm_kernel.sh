#!/bin/sh
# Fetches the kernel of net_vm.sh with apt-get once, into ${NET_VM_DIR:-/var/tmp/privsep-net-vm}/kernel.
set -eu
dir=${NET_VM_DIR:-/var/tmp/privsep-net-vm}
mkdir -p "$dir"
ls "$dir"/kernel/boot/vmlinuz-* >/dev/null 2>&1 && exit 0
fetched=$(mktemp -d "$dir/XXXXXX")
trap 'rm -rf "$fetched"' EXIT
package=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends:/ { print $2; exit }')
(cd "$fetched" && timeout 300 apt-get download -qq "$package" >&2)
dpkg -x "$fetched/$package"_*.deb "$fetched/kernel"
# Another run may have been quicker.
mv -T "$fetched/kernel" "$dir/kernel" 2>/dev/null || [ -d "$dir/kernel/boot" ]
