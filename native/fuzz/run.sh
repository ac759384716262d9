#!/bin/sh
# Builds the fuzz targets and runs each on its corpus and then on new inputs: SECONDS long, or, without, a number
# of inputs that is the same each time. Needs clang. An input that fails is kept in build/native-sanitized/found; once
# the fault is mended it belongs into corpus/. Ends with "N passed, N failed".
# usage: run.sh [SECONDS [TARGET...]]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=${PRIVSEP_SANITIZED_BUILD:-$here/../../build/native-sanitized}
seconds=${1:-}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- $(cd "$here" && ls ./*_fuzz.cc | sed 's|^\./||; s|\.cc$||')
"$here/../sanitized.sh" "$build" privsep_fuzz
mkdir -p "$build/found"

# fuzz TARGET: its output goes to TARGET.log; TARGET.passed is there when it found nothing.
fuzz() {
  target=$1
  rm -f "$build/$target.passed"
  if [ -n "$seconds" ]; then
    # What is new is kept between runs.
    learned=$build/learned/$target
    until="-max_total_time=$seconds"
  else
    learned=$build/scratch/$target
    rm -rf "$learned"
    # A conversation costs a few system calls a message.
    case $target in
      net_nft_fuzz | net_observe_fuzz) until="-seed=1 -runs=15000" ;;
      descriptor_* | net_socket_fuzz | passt_repair_fuzz) until="-seed=1 -runs=30000" ;;
      *) until="-seed=1 -runs=150000" ;;
    esac
  fi
  mkdir -p "$learned" "$here/corpus/$target"
  # No parser asks for much more memory than its input has.
  # shellcheck disable=SC2086
  "$build/$target" $until -timeout=5 -rss_limit_mb=1024 -malloc_limit_mb=16 -max_len=16384 \
    -artifact_prefix="$build/found/$target-" "$learned" "$here/corpus/$target" >"$build/$target.log" 2>&1 || return 0
  touch "$build/$target.passed"
}

started=0
for target; do
  fuzz "$target" &
  started=$((started + 1))
  [ $((started % ${JOBS:-2})) -ne 0 ] || wait
done
wait
passed=0
failed=0
for target; do
  if [ -e "$build/$target.passed" ]; then
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
