#!/usr/bin/env bash
# Everything CI checks, what fails fastest first. Closes with the ten slowest tests and "N passed, M failed, K skipped".
#   VLCACHE_TEST_ONLY="lint unit"   runs only these of the stages: lint unit python asan tsan fuzz
#   VLCACHE_MAX_ISA=avx2            runs all of it as a machine does that has no more than this instruction set
# A test runs in at least one build (cmake/VlcacheTests.cmake): what depends on the instruction set in build/ci, all of it
# on the scalar reference under AddressSanitizer and UBSan in build/asan, what threads share under ThreadSanitizer in
# build/tsan. build/test-logs/tests.txt says which ran where.
set -uo pipefail
cd "$(dirname "$0")/.."
stages=" ${VLCACHE_TEST_ONLY:-lint unit python asan tsan fuzz} "
logs=build/test-logs
rm -rf "$logs"
mkdir -p "$logs"
builds=() python_results=()
wants() { [[ $stages == *" $1 "* ]]; }

# step NAME COMMAND...: one check that passes or fails as a whole
step() {
  local name=$1 started=$SECONDS
  shift
  if "$@" >"$logs/$name.log" 2>&1; then
    echo "ok: $name" >>"$logs/steps.txt"
    echo "ok: $name, $((SECONDS - started)) s"
  else
    echo "FAILED: $name" | tee -a "$logs/steps.txt"
    tail -n 60 "$logs/$name.log"
  fi
}

# unit_tests PRESET [TARGET...]: builds these targets, by default all, and runs the test programs, as many at a time as there are cores
unit_tests() {
  local started
  step "build-$1" tools/build.sh "$@"
  rm -rf "build/$1/results" "build/$1/junit.xml"
  started=$SECONDS
  ctest --test-dir "build/$1" --parallel "$(nproc)" --output-junit junit.xml >"$logs/$1.log" 2>&1 || tail -n 40 "$logs/$1.log"
  echo "ran the tests of build/$1, $((SECONDS - started)) s"
  builds+=("build/$1")
}

# python_tests NAME INTERPRETER FOLDER...
python_tests() {
  local name=$1 started=$SECONDS
  shift
  VLCACHE=$PWD/build/ci/vlcache "$1" tools/run_python_tests.py --jobs 3 --junit "$logs/$name.xml" "${@:2}" >"$logs/$name.log" 2>&1 || cat "$logs/$name.log"
  echo "ran the tests of ${*:2}, $((SECONDS - started)) s"
  python_results+=("$logs/$name.xml")
}

if wants lint; then step lint tools/lint.sh; fi
if wants unit; then unit_tests ci; fi
if wants python; then
  wants unit || step build-ci tools/build.sh ci vlcache
  python_tests e2e python3 tests/e2e
  python=.venv/bin/python  # what a browser and the official clients see; without them all of it is skipped
  [ -x "$python" ] || python=python3
  python_tests page "$python" tests/page tests/clients
fi
export TSAN_OPTIONS="halt_on_error=1" UBSAN_OPTIONS="print_stacktrace=1"
if wants asan; then unit_tests asan vlcache_tests vlcache_fuzz; fi
if wants tsan; then unit_tests tsan vlcache_tests; fi
if wants fuzz; then
  echo "fuzzing, 5 s a parser"
  tools/fuzz.sh 5 >"$logs/fuzz.log" 2>&1 || tail -n 40 "$logs/fuzz.log"
  cp build/fuzz/results.txt "$logs/fuzz.txt" 2>/dev/null || echo "FAILED: fuzz" >>"$logs/steps.txt"
fi
if wants unit && wants asan; then step tests-in-targets python3 tools/check_tests.py build/ci build/asan; fi

echo "all of it: $((SECONDS / 60)) min $((SECONDS % 60)) s"
python3 tools/results.py "${builds[@]}" --python "${python_results[@]}" --lines "$logs/steps.txt" "$logs/fuzz.txt" --names "$logs/tests.txt"
