#!/bin/sh
# run.sh [NAME]...: builds the native unit tests with sanitizers and runs those whose name contains a NAME, or
# all, in shares side by side: most of their time they wait for the kernel. Needs root and clang. Ends with
# "N passed, N failed".
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=${PRIVSEP_SANITIZED_BUILD:-$here/../../build/native-sanitized}
shares=4
"$here/../sanitized.sh" "$build" privsep_tests
for kind in path name; do
  node "$here/${kind}_cases.mjs" >"$build/$kind-cases"
done
export PRIVSEP_PATH_CASES="$build/path-cases" PRIVSEP_NAME_CASES="$build/name-cases"
share=0
while [ "$share" -lt "$shares" ]; do
  PRIVSEP_TEST_SHARE=$share/$shares "$build/privsep_tests" "$@" >"$build/share-$share.log" 2>&1 &
  share=$((share + 1))
done
wait
passed=0
failed=0
share=0
while [ "$share" -lt "$shares" ]; do
  log=$build/share-$share.log
  share=$((share + 1))
  if end=$(tail -n 1 "$log" | grep -x '[0-9]* passed, [0-9]* failed'); then
    sed '$d' "$log" >&2
    passed=$((passed + ${end%% *}))
    end=${end#* passed, }
    failed=$((failed + ${end%% *}))
  else
    # It died.
    cat "$log" >&2
    failed=$((failed + 1))
  fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
