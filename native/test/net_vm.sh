#!/bin/sh
# Runs a native test program under a Debian kernel in QEMU, for machines whose own kernel lacks dummy links, has cpusets
# with cgroup v1, gives nobody CAP_SYS_RESOURCE or KVM (QEMU's emulation has AMD's virtualization), or has no vsock
# address of a host.
# usage: net_vm.sh PROGRAM [ARGUMENT...]
# Needs qemu-system-x86, busybox-static, kmod, cpio, binutils, iproute2, nftables and procps; vm_kernel.sh fetches the
# kernel. NET_VM_ACCELERATION: QEMU's, emulation unless given. NET_VM_FILES: a directory that the program finds as
# /files. NET_VM_BOOT: more for the kernel's command line. Ends with the program's status.
set -eu
program=$(realpath "$1")
shift
dir=${NET_VM_DIR:-/var/tmp/privsep-net-vm}
"$(dirname "$0")/vm_kernel.sh"
kernel=$(ls "$dir"/kernel/boot/vmlinuz-*)
version=${kernel##*/vmlinuz-}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root/bin" "$root/sbin" "$root/proc" "$root/sys" "$root/dev" "$root/tmp" "$root/lib/modules"
cp "$(command -v busybox)" "$root/bin/busybox"
# The kernel runs it to load a module.
ln -s ../bin/busybox "$root/sbin/modprobe"
mkdir -p "$root/lib/modules/$version"
(cd "$dir/kernel/lib/modules/$version" && find . -name '*.ko' | grep '^\./kernel/\(net/\(netfilter\|bridge\|ipv4\|ipv6\|802\|llc\|vmw_vsock\)\|drivers/\(net/[a-z]*\.ko\|vhost\)\|lib\|crypto\|arch/x86/kvm\|virt\)' |
  cpio --pass-through --make-directories --quiet "$root/lib/modules/$version")
cp "$dir/kernel/lib/modules/$version"/modules.* "$root/lib/modules/$version"
depmod -b "$root" "$version"
strip --strip-debug -o "$root/program" "$program"
[ -z "${NET_VM_FILES:-}" ] || cp -R "$NET_VM_FILES" "$root/files"
# The shell of busybox prefers its own poor ip(8), so the test program gets the machine's tools.
for tool in dash sed grep sort cat cut seq sleep sysctl ip bridge nft; do tools="${tools:-} $(command -v $tool)"; done
for file in "$program" $tools; do
  [ "$file" = "$program" ] || cp -L "$file" "$root/bin/"
  for library in $(ldd "$file" | grep -o '/[^ ]*'); do
    mkdir -p "$root/$(dirname "$library")"
    cp -L "$library" "$root/$library"
  done
done
cat > "$root/init" <<EOF
#!/bin/busybox sh
export PATH=/bin PRIVSEP_TEST_KVM=1
b=/bin/busybox
\$b mount -t proc proc /proc; \$b mount -t sysfs sys /sys; \$b mount -t devtmpfs dev /dev
[ ! -d /sys/fs/selinux ] || \$b mount -t selinuxfs selinux /sys/fs/selinux
for module in kvm-amd dummy bridge veth tun nf_tables nft_chain_nat nft_nat nft_masq nft_ct vsock_loopback; do \$b modprobe \$module; done
# Its module is loaded by whoever opens it.
\$b mknod /dev/vhost-vsock c 10 241
[ -c /dev/net/tun ] || { \$b mkdir -p /dev/net; \$b mknod /dev/net/tun c 10 200; }
\$b chmod 666 /dev/net/tun
echo 3 > /proc/sys/kernel/printk
/program $*
status=\$?
[ \$status -eq 0 ] || \$b dmesg | \$b grep 'SELinux: *failed\|avc:'
echo "status \$status"
\$b poweroff -f
EOF
chmod +x "$root/init"
ln -s dash "$root/bin/sh"
# Not compressed: unpacking takes longer in emulation than loading.
(cd "$root" && find . | cpio -o -H newc --quiet) > "$work/initrd"
acceleration=${NET_VM_ACCELERATION:-tcg}
cpu=EPYC,+svm
[ "$acceleration" = tcg ] || cpu=host
output=$work/output
timeout "${NET_VM_TIMEOUT:-1800}" qemu-system-x86_64 -accel "$acceleration" -cpu "$cpu" -m 512 -nodefaults -display none \
  -serial stdio -no-reboot -kernel "$kernel" -initrd "$work/initrd" -append "console=ttyS0 quiet panic=-1 ${NET_VM_BOOT:-}" |
  sed -u 's|\r||g' | tee "$output"
status=$(sed -n 's/^status //p' "$output" | tail -1)
exit "${status:-1}"
