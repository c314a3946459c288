#!/usr/bin/env bash
# Everything CI checks, what fails fastest first. Prints CPU and wall seconds by stage beside their budgets
# (tools/budgets.json), the ten slowest tests, and "N passed, M failed, K skipped".
#   VLCACHE_TEST_ONLY="lint unit"   runs only these of the stages: lint unit python asan tsan fuzz
#   VLCACHE_MAX_ISA=avx2            runs all of it as a machine does that has no more than this instruction set
# A test runs in at least one build (cmake/VlcacheTests.cmake): tests that depend on the instruction set in build/ci, all on
# the scalar reference under AddressSanitizer and UBSan in build/asan, those of shared state in base, store and server/http
# under ThreadSanitizer in build/tsan. build/test-logs/tests.txt says which ran where. `make tsan` and `make soak` have more.
set -uo pipefail
cd "$(dirname "$0")/.."
stages=" ${VLCACHE_TEST_ONLY:-lint unit python asan tsan fuzz} "
logs=build/test-logs
rm -rf "$logs"
mkdir -p "$logs"
: >"$logs/stages.tsv"
builds=() python_results=()
wants() { [[ $stages == *" $1 "* ]]; }

# CPU seconds that ended and awaited children have cost, in cpu_spent
cpu_seconds() {
  times >"$logs/times.txt"
  cpu_spent=$(awk 'NR == 2 { for (i = 1; i <= 2; ++i) { split($i, t, /[ms]/); n += 60 * t[1] + t[2] } print n }' "$logs/times.txt")
}

# begin_stage; end_stage NAME: writes what the stage cost to stages.tsv
begin_stage() { cpu_seconds; cpu_before=$cpu_spent stage_began=$EPOCHREALTIME; }
end_stage() {
  cpu_seconds
  awk -v name="$1" -v a="$cpu_before" -v b="$cpu_spent" -v c="$stage_began" -v d="$EPOCHREALTIME" \
    'BEGIN { printf "%s\t%.1f\t%.1f\n", name, b - a, d - c }' | tee -a "$logs/stages.tsv" |
    awk -F'\t' '{ printf "    %s: %.0f CPU s, %.0f s\n", $1, $2, $3 }'
}

fixed_job() { python3 tools/budgets.py job >>"$logs/jobs.txt" || echo "FAILED: the fixed job of tools/budgets" >>"$logs/steps.txt"; }

# step NAME COMMAND...: one check that passes or fails as a whole
step() {
  local name=$1
  shift
  begin_stage
  if "$@" >"$logs/$name.log" 2>&1; then
    echo "ok: $name" | tee -a "$logs/steps.txt"
  else
    echo "FAILED: $name" | tee -a "$logs/steps.txt"
    tail -n 60 "$logs/$name.log"
  fi
  end_stage "$name"
}

# unit_tests PRESET [TARGET...]: builds these targets, by default all, and runs the test programs: twice as many at a time
# as there are cores, where programs that compute count for two
unit_tests() {
  rm -f "build/$1/units.txt"
  step "build-$1" tools/build.sh "$@"
  rm -rf "build/$1/results" "build/$1/junit.xml"
  begin_stage
  ctest --test-dir "build/$1" --parallel $((2 * $(nproc))) --output-junit junit.xml >"$logs/$1.log" 2>&1 || tail -n 40 "$logs/$1.log"
  echo "ran the tests of build/$1"
  end_stage "$1"
  builds+=("build/$1")
}

# python_tests NAME INTERPRETER JOBS FOLDER...
python_tests() {
  local name=$1
  VLCACHE=$PWD/build/ci/vlcache "$2" tools/run_python_tests.py --jobs "$3" --junit "$logs/$name.xml" "${@:4}" >"$logs/$name.log" 2>&1 || cat "$logs/$name.log"
}

fixed_job
if wants lint; then step lint tools/lint.sh; fi
if wants unit; then unit_tests ci; fi
if wants python; then
  wants unit || step build-ci tools/build.sh ci vlcache
  python=.venv/bin/python  # of the browser and the official clients; without them their tests are skipped
  [ -x "$python" ] || python=python3
  begin_stage
  # Side by side: a browser waits, and so do servers.
  python_tests page "$python" 1 tests/page tests/clients &
  python_tests e2e python3 3 tests/e2e
  wait $!
  echo "ran the tests of tests/e2e, tests/page and tests/clients"
  end_stage python
  python_results+=("$logs/e2e.xml" "$logs/page.xml")
fi
fixed_job
export TSAN_OPTIONS="halt_on_error=1" UBSAN_OPTIONS="print_stacktrace=1"
if wants asan; then unit_tests asan vlcache_tests vlcache_fuzz; fi
if wants tsan; then unit_tests tsan vlcache_tests; fi
if wants fuzz; then
  begin_stage
  tools/fuzz.sh plan >"$logs/fuzz.log" 2>&1 || tail -n 40 "$logs/fuzz.log"
  cp build/fuzz/results.txt "$logs/fuzz.txt" 2>/dev/null || echo "FAILED: fuzz" >>"$logs/steps.txt"
  echo "fuzzed $(grep -c . "$logs/fuzz.txt") of the parsers: $(sed -nE 's/^(ok|FAILED): ([^:]*).*/\2/p' "$logs/fuzz.txt" | paste -sd' ')"
  end_stage fuzz
fi
if wants unit && wants asan; then step tests-in-targets python3 tools/check_tests.py build/ci build/asan; fi
fixed_job

echo
python3 tools/budgets.py report "$logs"
echo "all of it: $((SECONDS / 60)) min $((SECONDS % 60)) s"
python3 tools/results.py "${builds[@]}" --python "${python_results[@]}" --lines "$logs/steps.txt" "$logs/fuzz.txt" --names "$logs/tests.txt" --budgets "$logs"
