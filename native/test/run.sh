#!/bin/sh
# run.sh [NAME]...: builds the native unit tests with sanitizers and runs those whose name contains a NAME, or
# all. Needs root. Ends with "N passed, N failed".
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=${PRIVSEP_TEST_BUILD:-$here/../../build/native-tests}
mkdir -p "$build"
{
  cmake -S "$here/.." -B "$build" -DPRIVSEP_SANITIZE=ON -DCMAKE_BUILD_TYPE=Debug
  cmake --build "$build" --target privsep_tests -j "${JOBS:-2}"
} >"$build/build.log" 2>&1 || {
  cat "$build/build.log" >&2
  exit 1
}
node "$here/path_cases.mjs" >"$build/path-cases"
PRIVSEP_PATH_CASES=$build/path-cases exec "$build/privsep_tests" "$@"
