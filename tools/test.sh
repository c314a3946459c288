#!/usr/bin/env bash
# Everything CI checks, what fails fastest first. Closes with "N passed, M failed, K skipped".
#   VLCACHE_TEST_ONLY="lint unit"   runs only these of the stages: lint unit e2e page capped asan tsan fuzz
set -uo pipefail
cd "$(dirname "$0")/.."
stages=" ${VLCACHE_TEST_ONLY:-lint unit e2e page capped asan tsan fuzz} "
. tools/suites.sh

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
if wants page; then  # what a browser and the official clients see; without them all of it is skipped
  python=.venv/bin/python
  [ -x "$python" ] || python=python3
  suite page "$python" -m unittest discover -s tests/page -p 'test_*.py'
  suite clients "$python" -m unittest discover -s tests/clients -p 'test_*.py'
fi
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
  export GTEST_FILTER='-*EveryPolicy*:*EveryCombination*:*EveryRule*:*EveryRowDropper*:*EveryHeadRule*:*Peers*:*Budget.*'  # one thread's arithmetic, which asan has seen
  sanitized tsan vlcache_{base,ops_ref,cache,store,model,engine,server}_test  # who shares anything between threads
  unset GTEST_FILTER
fi
if wants fuzz; then
  echo "fuzzing, 10 s a parser"
  step fuzz tools/fuzz.sh 10
fi

closing_line
