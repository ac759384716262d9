#!/usr/bin/env bash
# Installs what building, the demo and the tests need: Debian packages (as root only) and npm packages.
# Does nothing when everything is there.
set -euo pipefail
cd "$(dirname "$0")/.."

debian_packages=(
  build-essential cmake python3          # the native addon
  clang libclang-rt-dev                  # its fuzz targets: libFuzzer and the sanitizers
  qemu-system-x86 seabios ipxe ipxe-qemu binutils iproute2 nftables # virtual machines and pod networks of the demo and the tests
  passt udhcpc                           # guests behind passt
  crun golang-github-containers-common   # the product's own containers in the tests, and the usual seccomp profile
  strace openssl procps util-linux e2fsprogs
)
# The package of another vendor may have brought kubectl already.
command -v kubectl >/dev/null || debian_packages+=(kubernetes-client)

missing=()
for package in "${debian_packages[@]}"; do
  dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
if ((${#missing[@]})); then
  if [[ $(id -u) -ne 0 ]]; then
    echo "setup: not root, going on without: ${missing[*]}" >&2
  else
    echo "setup: installing ${missing[*]}" >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  fi
fi

node_ok() { command -v node >/dev/null && node -e 'const [a,b]=process.versions.node.split(".").map(Number);process.exit(a>20||(a===20&&b>=17)?0:1)'; }
if ! node_ok && [[ $(id -u) -eq 0 ]]; then
  apt-get install -y -qq --no-install-recommends nodejs npm >/dev/null
fi
node_ok || { echo "setup: Node.js 20.17 or newer is needed; found $(node --version 2>/dev/null || echo none)" >&2; exit 1; }

# npm ci only when the lock file changed since the last one.
stamp=node_modules/.virt-privsep-lock
if ! cmp -s package-lock.json "$stamp"; then
  echo "setup: installing npm packages" >&2
  npm ci --no-fund --no-audit --loglevel=error
  cp package-lock.json "$stamp"
fi
