#!/bin/sh
# Runs a native test program under a Debian kernel in QEMU, for machines whose own kernel lacks dummy links, has cpusets
# with cgroup v1, or gives nobody CAP_SYS_RESOURCE or KVM: QEMU's emulation has AMD's virtualization.
# usage: net_vm.sh PROGRAM [ARGUMENT...]
# Needs qemu-system-x86, busybox-static, kmod, cpio, iproute2, nftables and procps; fetches the kernel with apt-get
# into ${NET_VM_DIR:-/var/tmp/privsep-net-vm} once. NET_VM_ACCELERATION: QEMU's, emulation unless given. Ends with the
# program's status.
set -eu
program=$(realpath "$1")
shift
dir=${NET_VM_DIR:-/var/tmp/privsep-net-vm}
mkdir -p "$dir"
if ! ls "$dir"/kernel/boot/vmlinuz-* >/dev/null 2>&1; then
  package=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends:/ { print $2; exit }')
  (cd "$dir" && apt-get download "$package" >/dev/null 2>&1)
  dpkg -x "$dir"/"$package"_*.deb "$dir/kernel"
fi
kernel=$(ls "$dir"/kernel/boot/vmlinuz-*)
version=${kernel##*/vmlinuz-}

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/bin" "$root/proc" "$root/sys" "$root/dev" "$root/tmp" "$root/lib/modules"
cp "$(command -v busybox)" "$root/bin/busybox"
cp -a "$dir/kernel/lib/modules/$version" "$root/lib/modules/$version"
(cd "$root/lib/modules/$version" && find . -name '*.ko' | grep -v '^\./kernel/\(net/\(netfilter\|bridge\|ipv4\|ipv6\|802\|llc\)\|drivers/net/[a-z]*\.ko\|lib\|crypto\|arch/x86/kvm\|virt\)' | xargs rm -f)
depmod -b "$root" "$version"
cp "$program" "$root/program"
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
for module in kvm-amd dummy bridge veth tun nf_tables nft_chain_nat nft_nat nft_masq nft_ct; do \$b modprobe \$module; done
[ -c /dev/net/tun ] || { \$b mkdir -p /dev/net; \$b mknod /dev/net/tun c 10 200; }
echo 3 > /proc/sys/kernel/printk
/program $*
echo "status \$?"
\$b poweroff -f
EOF
chmod +x "$root/init"
ln -s dash "$root/bin/sh"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) > "$dir/initrd"
acceleration=${NET_VM_ACCELERATION:-tcg}
cpu=EPYC,+svm
[ "$acceleration" = tcg ] || cpu=host
output=$dir/output
timeout "${NET_VM_TIMEOUT:-1800}" qemu-system-x86_64 -accel "$acceleration" -cpu "$cpu" -m 512 -nodefaults -display none \
  -serial stdio -no-reboot -kernel "$kernel" -initrd "$dir/initrd" -append "console=ttyS0 quiet panic=-1" |
  sed -u 's|\r||g' | tee "$output"
status=$(sed -n 's/^status //p' "$output" | tail -1)
exit "${status:-1}"
