#!/usr/bin/env bash
# Runs every fuzz target for SECONDS from its committed corpus:  tools/fuzz.sh SECONDS
# New inputs go to build/fuzz/corpus, crashes to build/fuzz/crashes; a crash fails.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
tools/build.sh fuzz fuzzers >/dev/null
mkdir -p build/fuzz/crashes
passed=0 failed=0
while read -r target program; do
  corpus=tests/corpus/${target%_fuzz}
  mkdir -p "build/fuzz/corpus/$target"
  if "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=1024 -print_final_stats=0 -verbosity=0 \
      -artifact_prefix=build/fuzz/crashes/ "build/fuzz/corpus/$target" "$corpus" >"build/fuzz/$target.log" 2>&1; then
    echo "ok: $target, $seconds s"
    passed=$((passed + 1))
  else
    echo "FAILED: $target (build/fuzz/$target.log)"
    tail -n 30 "build/fuzz/$target.log"
    failed=$((failed + 1))
  fi
done <build/fuzz/fuzzers.txt
echo "fuzzers: $passed passed, $failed failed"
[ "$failed" = 0 ]
