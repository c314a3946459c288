#!/usr/bin/env bash
# Runs every fuzz target for SECONDS from its committed corpus, as many at a time as there are cores:  tools/fuzz.sh SECONDS
# New inputs go to build/fuzz/corpus, crashes to build/fuzz/crashes; a crash fails.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
tools/build.sh asan fuzzers >/dev/null
mkdir -p build/fuzz/crashes

# fuzz TARGET PROGRAM SECONDS: prints one line, and the end of the log after a crash
fuzz() {
  local target=$1 program=$2 seconds=$3 log="build/fuzz/$1.log"
  mkdir -p "build/fuzz/corpus/$target"
  if [ ! -d "tests/corpus/${target%_fuzz}" ]; then
    echo "FAILED: $target: no seeds in tests/corpus/${target%_fuzz}"
    return 1
  fi
  if "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=1024 -print_final_stats=1 -verbosity=0 \
    -artifact_prefix="build/fuzz/crashes/$target-" "build/fuzz/corpus/$target" "tests/corpus/${target%_fuzz}" >"$log" 2>&1 </dev/null; then
    echo "ok: $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs"
  else
    echo "FAILED: $target ($log)"
    tail -n 30 "$log"
    return 1
  fi
}
export -f fuzz

total=$(wc -l <build/asan/fuzzers.txt)
rc=0
# One argument list per target; xargs goes on after a failure and returns 123.
xargs -P "$(nproc)" -L 1 bash -c 'fuzz "$0" "$1" "$2" || exit 1' < <(sed "s/\$/ $seconds/" build/asan/fuzzers.txt) >build/fuzz/results.txt || rc=$?
cat build/fuzz/results.txt
echo "fuzzers: $(grep -c '^ok: ' build/fuzz/results.txt || true) of $total passed"
[ "$rc" = 0 ] && [ "$total" -gt 0 ]
