#!/usr/bin/env bash
# Installs what building, the demo and the tests need: Debian packages (as root only) and npm packages.
# Does nothing when everything is there.
set -euo pipefail
cd "$(dirname "$0")/.."

build_packages=(build-essential cmake python3) # the native addon
test_packages=(
  clang libclang-rt-dev                  # its unit tests and fuzz targets: the sanitizers and libFuzzer
  qemu-system-x86 seabios ipxe ipxe-qemu binutils iproute2 nftables # virtual machines and pod networks of the demo and the tests
  passt udhcpc                           # guests behind passt
  crun golang-github-containers-common   # the product's own containers in the tests, and the usual seccomp profile
  busybox-static cpio kmod secilc        # a Debian kernel in QEMU that enforces a SELinux policy
  strace openssl procps util-linux e2fsprogs xfsprogs btrfs-progs
)
# The package of another vendor may have brought kubectl already.
command -v kubectl >/dev/null || test_packages+=(kubernetes-client)

# install PACKAGE...: those that are missing.
install() {
  local missing=() package
  for package; do
    dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  if [[ $(id -u) -ne 0 ]]; then
    echo "setup: not root, going on without: ${missing[*]}" >&2
    return 0
  fi
  echo "setup: installing ${missing[*]}" >&2
  [[ -n ${updated:-} ]] || apt-get update -qq
  updated=1
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

install "${build_packages[@]}"

node_ok() { command -v node >/dev/null && node -e 'const [a,b]=process.versions.node.split(".").map(Number);process.exit(a>20||(a===20&&b>=17)?0:1)'; }
node_ok || install nodejs npm
node_ok || { echo "setup: Node.js 20.17 or newer is needed; found $(node --version 2>/dev/null || echo none)" >&2; exit 1; }

# What only tests need comes while npm builds the addon.
install "${test_packages[@]}" &
installing=$!
trap wait EXIT

# npm ci only when the lock file changed since the last one.
stamp=node_modules/.virt-privsep-lock
if ! cmp -s package-lock.json "$stamp"; then
  echo "setup: installing npm packages" >&2
  npm ci --no-fund --no-audit --loglevel=error
  cp package-lock.json "$stamp"
fi
wait "$installing"
