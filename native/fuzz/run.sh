#!/bin/sh
# Builds the fuzz targets and runs each on its corpus and then on new inputs: SECONDS long, or, without, a number
# of inputs that is the same each time. Needs clang. An input that fails is kept in build/native-fuzz/found; once
# the fault is mended it belongs into corpus/. Ends with "N passed, N failed".
# usage: run.sh [SECONDS [TARGET...]]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=${PRIVSEP_FUZZ_BUILD:-$here/../../build/native-fuzz}
seconds=${1:-}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- $(cd "$here" && ls ./*_fuzz.cc | sed 's|^\./||; s|\.cc$||')
mkdir -p "$build/found"
{
  cmake -S "$here/.." -B "$build" -DPRIVSEP_FUZZ=ON -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=Debug
  cmake --build "$build" --target privsep_fuzz -j "${JOBS:-2}"
} >"$build/build.log" 2>&1 || {
  cat "$build/build.log" >&2
  exit 1
}
passed=0
failed=0
for target; do
  if [ -n "$seconds" ]; then
    # What is new is kept between runs.
    learned=$build/learned/$target
    until="-max_total_time=$seconds"
  else
    learned=$build/scratch
    rm -rf "$learned"
    # A conversation costs a few system calls a message.
    case $target in
      net_nft_fuzz | net_observe_fuzz) until="-seed=1 -runs=30000" ;;
      descriptor_* | net_socket_fuzz | passt_repair_fuzz) until="-seed=1 -runs=60000" ;;
      *) until="-seed=1 -runs=300000" ;;
    esac
  fi
  mkdir -p "$learned" "$here/corpus/$target"
  # No parser asks for much more memory than its input has.
  # shellcheck disable=SC2086
  if "$build/$target" $until -timeout=5 -rss_limit_mb=1024 -malloc_limit_mb=16 -max_len=16384 \
    -artifact_prefix="$build/found/$target-" "$learned" "$here/corpus/$target" >"$build/$target.log" 2>&1; then
    passed=$((passed + 1))
    echo "$target: $(sed -n 's/^Done //p' "$build/$target.log")"
  else
    failed=$((failed + 1))
    tail -n 40 "$build/$target.log" >&2
    echo "$target: FAILED"
  fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
