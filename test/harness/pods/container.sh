#!/bin/sh
# Makes the root of a container in the calling mount and PID namespace (both fresh) and becomes its process.
#
#   container.sh ROOT UID IMAGE [volume SOURCE TARGET | hostToContainer SOURCE TARGET | readOnly SOURCE TARGET |
#                copy SOURCE TARGET | device TYPE MAJOR MINOR MODE NAME]... -- COMMAND...
#
# IMAGE is a directory that becomes the root, or empty for one of its own.
# The caller's mounts are slaves of the host's, so a hostToContainer volume receives later host mounts.
set -eu
root=$1
uid=$2
image=$3
shift 3

if [ -n "$image" ]; then
  mount --bind "$image" "$root"
else
  mount -t tmpfs -o mode=755,size=64m container "$root"
fi
cd "$root"
mkdir -p -m 755 usr etc proc sys dev run tmp var old
chmod 1777 tmp
for each in bin sbin lib lib64; do ln -sfn "usr/$each" "$each"; done
ln -sfn ../run var/run
mount --bind -o ro /usr usr
mount --bind -o ro /etc etc
mount -t proc -o nosuid,nodev,noexec proc proc
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs sys
mount -t tmpfs -o mode=755,size=1m,nosuid,noexec dev dev
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
mkdir -m 1777 dev/shm
mkdir dev/net
chown "$uid:$uid" run

while [ "$1" != -- ]; do
  case $1 in
    volume | hostToContainer | readOnly)
      target=${3#/}
      mkdir -p "$target"
      options=rw
      [ "$1" = readOnly ] && options=ro
      mount --bind -o "$options" "$2" "$target"
      [ "$1" = hostToContainer ] || mount --make-private "$target"
      shift 3
      ;;
    copy) # into the container's own root, as an image layer has it
      target=${3#/}
      mkdir -p "${target%/*}"
      cp "$2" "$target"
      chown "$uid:$uid" "$target"
      chmod 440 "$target"
      shift 3
      ;;
    device)
      mknod -m "$5" "dev/$6" "$2" "$3" "$4"
      shift 6
      ;;
    *)
      echo "container.sh: unknown argument $1" >&2
      exit 64
      ;;
  esac
done
shift

pivot_root . old
umount -l /old
rmdir /old
cd /
exec setpriv --reuid="$uid" --regid="$uid" --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all \
  --ambient-caps=-all -- "$@"
