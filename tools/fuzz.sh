#!/usr/bin/env bash
# Runs every fuzz target for SECONDS from its committed corpus, as many at a time as there are cores:  tools/fuzz.sh SECONDS
# "plan" for SECONDS: those that tools/fuzz_plan.py chooses for this commit, 30 s in all.
# New inputs go to build/fuzz/corpus, crashes to build/fuzz/crashes; a crash fails.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
program=build/asan/vlcache_fuzz
tools/build.sh asan vlcache_fuzz >/dev/null
mkdir -p build/fuzz/crashes

# fuzz PROGRAM SECONDS TARGET: prints one line, and the end of the log after a crash
fuzz() {
  local program=$1 seconds=$2 target=$3 log="build/fuzz/$3.log"
  mkdir -p "build/fuzz/corpus/$target"
  if [ ! -d "tests/corpus/$target" ]; then
    echo "FAILED: $target: no seeds in tests/corpus/$target"
    return 1
  fi
  if "$program" "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=1024 -print_final_stats=1 -verbosity=0 \
    -artifact_prefix="build/fuzz/crashes/$target-" "build/fuzz/corpus/$target" "tests/corpus/$target" >"$log" 2>&1 </dev/null; then
    echo "ok: $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs"
  else
    echo "FAILED: $target ($log)"
    tail -n 30 "$log"
    return 1
  fi
}
export -f fuzz

if [ "$seconds" = plan ]; then
  python3 tools/fuzz_plan.py >build/fuzz/targets.txt
else
  "$program" | sed "s/\$/ $seconds/" >build/fuzz/targets.txt
fi
total=$(wc -l <build/fuzz/targets.txt)
rc=0
# One line per target; xargs continues after a failure and returns 123.
xargs -P "$(nproc)" -L1 bash -c "fuzz $program \"\$2\" \"\$1\" || exit 1" - <build/fuzz/targets.txt >build/fuzz/results.txt || rc=$?
cat build/fuzz/results.txt
echo "fuzzers: $(grep -c '^ok: ' build/fuzz/results.txt || true) of $total passed"
[ "$rc" = 0 ] && [ "$total" -gt 0 ]
