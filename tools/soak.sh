#!/usr/bin/env bash
# What happens rarely, often, and what `make test` leaves out: every unit test with the release compiler and the real
# kernels, and under all sanitizer checks at full size (units); writers killed, faults of disks and servers, every
# combination of policies and budgets (an hour and a half), damaged models, many requests with little memory, answers
# through nginx, signals every 5 ms, the server's threads watched. Closes with "N passed, M failed, K skipped".
#   VLCACHE_SOAK_KILLS=1000 VLCACHE_SOAK_ROUNDS=20 VLCACHE_SOAK_REQUESTS=1000 VLCACHE_SOAK_MODELS=5000 VLCACHE_SOAK_STREAM_SECONDS=1800 VLCACHE_SOAK_CROWD_SECONDS=600 VLCACHE_SOAK_PROXIED=5000 VLCACHE_SOAK_SIGNALS=8 VLCACHE_SOAK_ONLY="units kills faults policies models load streams proxies signals threads"
set -uo pipefail
cd "$(dirname "$0")/.."
kills=${VLCACHE_SOAK_KILLS:-1000} rounds=${VLCACHE_SOAK_ROUNDS:-20} requests=${VLCACHE_SOAK_REQUESTS:-1000} models=${VLCACHE_SOAK_MODELS:-5000}
stream_seconds=${VLCACHE_SOAK_STREAM_SECONDS:-1800}
crowd_seconds=${VLCACHE_SOAK_CROWD_SECONDS:-600} signals=${VLCACHE_SOAK_SIGNALS:-8}
proxied=${VLCACHE_SOAK_PROXIED:-5000}
stages=" ${VLCACHE_SOAK_ONLY:-units kills faults policies models load streams proxies signals threads} "
logs=build/soak-logs
rm -rf "$logs"
mkdir -p "$logs"
builds=() results=()

wants() { [[ $stages == *" $1 "* ]]; }

# step NAME COMMAND...: one command that passes or fails as a whole
step() {
  local name=$1 started=$SECONDS
  shift
  if timeout 14400 "$@" >"$logs/$name.log" 2>&1; then
    echo "ok: $name" >>"$logs/steps.txt"
    echo "ok: $name, $((SECONDS - started)) s"
  else
    echo "FAILED: $name" | tee -a "$logs/steps.txt"
    tail -n 60 "$logs/$name.log"
  fi
}

# suite NAME COMMAND...: tests that write JUnit, counted one by one; FILE.xml in the command stands for the name of the
# file. An exit status other than zero after tests that all passed is a failure of its own.
suite() {
  local name=$1 xml="$logs/$1.xml" rc=0 started=$SECONDS
  shift
  timeout 14400 "${@//FILE.xml/$xml}" >"$logs/$name.log" 2>&1 || rc=$?
  results+=("$xml")
  if [ "$rc" = 0 ]; then
    echo "ok: $name, $((SECONDS - started)) s"
    return
  fi
  echo "FAILED: $name (exit $rc)"
  tail -n 60 "$logs/$name.log"
  if [ -e "$xml" ] && ! grep -qE '<(failure|error)' "$xml"; then echo "FAILED: $name: exit $rc" >>"$logs/steps.txt"; fi
}

# program NAME PROGRAM FILTER [ARGUMENT...]: a GoogleTest program
program() { suite "$1" "$2" --gtest_brief=1 --gtest_output=xml:FILE.xml --gtest_filter="$3" "${@:4}"; }

# python_tests NAME TEXT: end-to-end tests whose id contains the text, in one process
python_tests() { suite "$1" python3 tools/run_python_tests.py tests/e2e --jobs 1 --timeout 14400 --junit FILE.xml --only "$2"; }

# unit_tests PRESET [TARGET...]: builds the test programs and these targets, and runs ctest
unit_tests() {
  local started
  step "build-$1" tools/build.sh "$1" vlcache_tests "${@:2}"
  rm -rf "build/$1/results" "build/$1/junit.xml"
  started=$SECONDS
  ctest --test-dir "build/$1" --parallel "$(nproc)" --output-junit junit.xml >"$logs/$1.log" 2>&1 || tail -n 40 "$logs/$1.log"
  echo "ran the tests of build/$1, $((SECONDS - started)) s"
  builds+=("build/$1")
}

step build tools/build.sh release vlcache vlcache_store_test vlcache_engine_test
export VLCACHE=$PWD/build/release/vlcache
store=build/release/src/store/vlcache_store_test engine=build/release/src/engine/vlcache_engine_test

if wants units; then
  unit_tests release
  VLCACHE_TEST_FULL=1 UBSAN_OPTIONS="print_stacktrace=1" unit_tests asan-full vlcache_fuzz  # ctest replays the corpora, too
fi
if wants kills; then
  VLCACHE_TEST_KILLS=$kills program "$kills-kills" $store 'DiskFaults.KilledWhileSaving'
fi
if wants faults; then
  for ((round = 1; round <= rounds; ++round)); do  # each in an order of its own
    program "store-faults-$round" $store '*Fault*:*Damage*:*Redis*:*StoreWorker*:TierChain*:-DiskFaults.KilledWhileSaving' \
      --gtest_shuffle --gtest_random_seed="$round"
    program "engine-faults-$round" $engine '*StoredImages*:*SlowTiers*:*SlowRedis*:NearTier*:Accounting*' \
      --gtest_shuffle --gtest_random_seed="$round"
  done
  python_tests processes test_store.
fi
if wants policies; then  # every combination of scorer, allocator, decode rule, preset and budget, on four prompts
  VLCACHE_TEST_COMBINATIONS=all program policies $engine 'EveryCombination.*'
  # every policy preempted at every place, and compressing KV while all pages are in use
  VLCACHE_TEST_REPLAYS=all VLCACHE_TEST_PAGES=all program preempted $engine 'Preempted.*:PagesForPolicies.*'
fi
if wants models; then  # configurations and processor files: an answer or one clear line
  step "$models-damaged-models" python3 tools/damage_models.py --cases "$models" build/release/vlcache
  tail -q -n 1 "$logs/$models-damaged-models.log"
fi
if wants load; then
  step "$requests-requests" python3 studies/reuse_load.py --requests "$requests" build/release/vlcache
  step "$((2 * requests))-combinations" python3 studies/reuse_load.py --once --requests $((2 * requests)) build/release/vlcache
  tail -q -n 3 "$logs/$requests-requests.log" "$logs/$((2 * requests))-combinations.log"
fi
if wants streams; then
  step "$crowd_seconds-seconds-of-crowds" python3 studies/load/crowd.py --seconds "$crowd_seconds" build/release/vlcache
  tail -q -n 5 "$logs/$crowd_seconds-seconds-of-crowds.log"
  step "$stream_seconds-seconds-of-streams" python3 studies/load/soak.py --seconds "$stream_seconds" build/release/vlcache
  tail -q -n 3 "$logs/$stream_seconds-seconds-of-streams.log"
fi
if wants proxies; then VLCACHE_TEST_PROXIED=$proxied python_tests "$proxied-answers-through-nginx" through_nginx; fi
if wants signals; then  # every command under a handler without a stack of its own, interrupted, on a terminal that is resized
  VLCACHE_TEST_SIGNALS=$signals python_tests signals test_signals.
fi
if wants threads; then step server-under-tsan tools/tsan_server.sh; fi
python3 tools/results.py "${builds[@]}" --python "${results[@]}" --lines "$logs/steps.txt" --names "$logs/tests.txt"
