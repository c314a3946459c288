#!/usr/bin/env bash
# The server's end-to-end tests, or some of them, under ThreadSanitizer with the kernels that people are served with:
#   tools/tsan_server.sh [test_server.FullServer ...]
# Not part of `make test`: 9 minutes to build and 10 to run on two cores. `make test` has the unit tests of all that threads share.
set -euo pipefail
cd "$(dirname "$0")/.."
tests=("$@")
[ $# -gt 0 ] || tests=(test_server test_access test_operations test_abuse test_answer_forms test_load test_documented test_docs)
tools/build.sh tsan-kernels vlcache
reports=$(mktemp -d)
trap 'rm -rf "$reports"' EXIT
export VLCACHE=$PWD/build/tsan-kernels/vlcache TSAN_OPTIONS="exitcode=66:log_path=$reports/report" VLCACHE_TEST_SOAK_SECONDS=${VLCACHE_TEST_SOAK_SECONDS:-30}
rc=0
(cd tests/e2e && python3 -m unittest "${tests[@]}") || rc=$?
for report in "$reports"/*; do
  [ -e "$report" ] || continue
  cat "$report"
  rc=1
done
exit "$rc"
