#!/bin/sh
# Builds the native unit tests with sanitizers and runs them. Needs root. Ends with "N passed, N failed".
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=${PRIVSEP_TEST_BUILD:-$here/../../build/native-tests}
cmake -S "$here/.." -B "$build" -DPRIVSEP_SANITIZE=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo >/dev/null
cmake --build "$build" --target privsep_tests -j "${JOBS:-2}" >"$build/build.log" 2>&1 || {
  cat "$build/build.log" >&2
  exit 1
}
passed=0
failed=0
for program in privsep_tests privsep_net_tests; do
  output=$("$build/$program") && status=0 || status=$?
  printf '%s\n' "$output"
  counts=$(printf '%s\n' "$output" | sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' | tail -n 1)
  if [ -n "$counts" ]; then
    passed=$((passed + ${counts% *}))
    failed=$((failed + ${counts#* }))
  elif [ "$status" -eq 0 ]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
  fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
