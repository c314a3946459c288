#!/usr/bin/env bash
# Everything CI checks, what fails fastest first. Closes with "N passed, M failed, K skipped".
#   VLCACHE_TEST_ONLY="lint unit"   runs only these of the stages: lint unit e2e capped asan tsan fuzz
set -uo pipefail
cd "$(dirname "$0")/.."
stages=" ${VLCACHE_TEST_ONLY:-lint unit e2e capped asan tsan fuzz} "
passed=0 failed=0 skipped=0
logs=build/test-logs
mkdir -p "$logs"

sum() { awk '{n += $1} END {print n + 0}'; }
number_after() { grep -aoE "$1 [0-9]+" "$2" | grep -oE '[0-9]+$' | sum; }

# step NAME COMMAND...: one command that passes or fails as a whole
step() {
  local name=$1
  shift
  if "$@" >"$logs/$name.log" 2>&1; then
    passed=$((passed + 1))
    echo "ok: $name"
  else
    failed=$((failed + 1))
    echo "FAILED: $name"
    tail -n 60 "$logs/$name.log"
  fi
}

# suite NAME COMMAND...: a GoogleTest program or Python's unittest, counted test by test
suite() {
  local name=$1 log="$logs/$1.log" rc=0 started=$SECONDS ok bad skip ran
  shift
  timeout 1500 "$@" >"$log" 2>&1 || rc=$?
  ran=$(number_after '^Ran' "$log")
  skip=$(($(number_after '^\[  SKIPPED \]' "$log") + $(number_after 'skipped=' <(sed 's/skipped=/skipped= /' "$log"))))
  bad=$(($(grep -acE '^\[  FAILED  \] .* \([0-9]+ ms\)$' "$log") + $(number_after '(failures|errors)=' <(sed -E 's/(failures|errors)=/\1= /g' "$log"))))
  ok=$(($(number_after '^\[  PASSED  \]' "$log") + (ran > 0 ? ran - bad - skip : 0)))
  if [ $rc != 0 ] && [ $bad = 0 ]; then bad=1; fi  # it died before it could count
  if [ $rc = 0 ] && [ $((ok + skip)) = 0 ]; then bad=1; echo "no test ran" >>"$log"; fi
  passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
  if [ $bad = 0 ]; then
    echo "ok: $name: $ok passed, $skip skipped, $((SECONDS - started)) s"
  else
    echo "FAILED: $name: $bad failed (exit $rc)"
    grep -aE 'Failure|FAILED|ERROR|FAIL:|error:' "$log" | head -n 40
    tail -n 60 "$log"
  fi
}

unit_tests() {  # PRESET [VARIABLE=VALUE...]: every test program of a build
  local preset=$1
  shift
  for program in $(find "build/$preset" -name 'vlcache_*_test' -type f -perm -u+x | sort); do
    suite "$preset-$(basename "$program")${1:+-capped}" env "$@" "$program" --gtest_brief=1
  done
}

wants() { [[ $stages == *" $1 "* ]]; }

echo "building (release)"
tools/build.sh release >"$logs/build-release.log" 2>&1 || { tail -n 60 "$logs/build-release.log"; echo "0 passed, 1 failed"; exit 1; }

if wants lint; then
  step lint tools/lint.sh
  step tests-in-targets python3 tools/check_tests.py build/release
fi
if wants unit; then unit_tests release; fi
if wants e2e; then suite e2e python3 -m unittest discover -s tests/e2e -p 'test_*.py'; fi
if wants capped; then
  # The same golden tests as a machine without AVX-512 runs them (docs/design.md, Backends).
  suite golden-avx2 env ONEDNN_MAX_CPU_ISA=AVX2 VLCACHE_TEST_MAX_ISA=avx2 build/release/tests/vlcache_golden_test --gtest_brief=1
fi
# Sanitized programs use ops/ref: what they watch is everything around the kernels.
sanitized() {  # PRESET [TARGET...]
  echo "building ($1)"
  step "build-$1" tools/build.sh "$@"
  export TSAN_OPTIONS="halt_on_error=1" UBSAN_OPTIONS="print_stacktrace=1"
  unit_tests "$1"
}
if wants asan; then sanitized asan; fi
if wants tsan; then
  export GTEST_FILTER='-*EveryPolicy*:*EveryRule*:*EveryRowDropper*:*EveryHeadRule*:*Peers*:*Budget.*'  # one thread's arithmetic, which asan has seen
  sanitized tsan vlcache_{base,ops_ref,cache,store,model,engine,server}_test  # who shares anything between threads
  unset GTEST_FILTER
fi
if wants fuzz; then
  echo "fuzzing, 10 s a parser"
  step fuzz tools/fuzz.sh 10
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
