#!/bin/sh
# sanitized.sh DIRECTORY TARGET...: builds unit tests (privsep_tests) or fuzz targets (privsep_fuzz) with sanitizers,
# from the same objects. Needs clang. Says nothing unless it fails.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$1
shift
mkdir -p "$build"
{
  cmake -S "$here" -B "$build" -DPRIVSEP_SANITIZE=ON -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=Debug
  cmake --build "$build" --target "$@" -j "${JOBS:-2}"
} >"$build/build.log" 2>&1 || {
  cat "$build/build.log" >&2
  exit 1
}
