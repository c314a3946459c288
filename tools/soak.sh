#!/usr/bin/env bash
# What happens rarely, often: writers killed, faults of disks and servers, every combination of policies and budgets (an
# hour and a half), damaged models, many requests with little memory, signals every 5 ms, the server's threads watched. Closes with "N passed, M failed, K skipped".
#   VLCACHE_SOAK_KILLS=1000 VLCACHE_SOAK_ROUNDS=20 VLCACHE_SOAK_REQUESTS=1000 VLCACHE_SOAK_MODELS=5000 VLCACHE_SOAK_STREAM_SECONDS=1800 VLCACHE_SOAK_CROWD_SECONDS=600 VLCACHE_SOAK_SIGNALS=8 VLCACHE_SOAK_ONLY="kills faults policies models load streams signals threads"
set -uo pipefail
cd "$(dirname "$0")/.."
kills=${VLCACHE_SOAK_KILLS:-1000} rounds=${VLCACHE_SOAK_ROUNDS:-20} requests=${VLCACHE_SOAK_REQUESTS:-1000} models=${VLCACHE_SOAK_MODELS:-5000}
stream_seconds=${VLCACHE_SOAK_STREAM_SECONDS:-1800}
crowd_seconds=${VLCACHE_SOAK_CROWD_SECONDS:-600} signals=${VLCACHE_SOAK_SIGNALS:-8}
stages=" ${VLCACHE_SOAK_ONLY:-kills faults policies models load streams signals threads} "
suite_seconds=14400
. tools/suites.sh

echo "building (release)"
tools/build.sh release vlcache vlcache_store_test vlcache_engine_test >"$logs/build-release.log" 2>&1 ||
  { tail -n 60 "$logs/build-release.log"; echo "0 passed, 1 failed"; exit 1; }
store=build/release/src/store/vlcache_store_test engine=build/release/src/engine/vlcache_engine_test

wants() { [[ $stages == *" $1 "* ]]; }

if wants kills; then
  suite "soak-$kills-kills" env VLCACHE_TEST_KILLS="$kills" $store --gtest_brief=1 --gtest_filter='DiskFaults.KilledWhileSaving'
fi
if wants faults; then  # each round in an order of its own
  suite "soak-$rounds-rounds-of-store-faults" $store --gtest_brief=1 --gtest_repeat="$rounds" --gtest_shuffle \
    --gtest_filter='*Fault*:*Damage*:*Redis*:*StoreWorker*:TierChain*:-DiskFaults.KilledWhileSaving'
  suite "soak-$rounds-rounds-of-engine-faults" $engine --gtest_brief=1 --gtest_repeat="$rounds" --gtest_shuffle \
    --gtest_filter='*StoredImages*:*SlowTiers*:*SlowRedis*:NearTier*:Accounting*'
  suite "soak-processes" python3 -m unittest discover -s tests/e2e -p 'test_store.py'
fi
if wants policies; then  # every combination of scorer, allocator, decode rule, preset and budget, on four prompts
  suite "soak-policies" env VLCACHE_TEST_COMBINATIONS=all $engine --gtest_brief=1 --gtest_filter='EveryCombination.*'
  # every policy preempted at every place, and compressing KV while all pages are in use
  suite "soak-preempted" env VLCACHE_TEST_REPLAYS=all VLCACHE_TEST_PAGES=all $engine --gtest_brief=1 --gtest_filter='Preempted.*:PagesForPolicies.*'
fi
if wants models; then  # configurations and processor files: an answer or one clear line
  step "soak-$models-damaged-models" python3 tools/damage_models.py --cases "$models" build/release/vlcache
  tail -q -n 1 "$logs/soak-$models-damaged-models.log"
fi
if wants load; then
  step "soak-$requests-requests" python3 tools/reuse_load.py --requests "$requests" build/release/vlcache
  step "soak-$((2 * requests))-combinations" python3 tools/reuse_load.py --once --requests $((2 * requests)) build/release/vlcache
  tail -q -n 3 "$logs/soak-$requests-requests.log" "$logs/soak-$((2 * requests))-combinations.log"
fi
if wants streams; then
  step "soak-$crowd_seconds-seconds-of-crowds" python3 tools/load/crowd.py --seconds "$crowd_seconds" build/release/vlcache
  tail -q -n 5 "$logs/soak-$crowd_seconds-seconds-of-crowds.log"
  step "soak-$stream_seconds-seconds-of-streams" python3 tools/load/soak.py --seconds "$stream_seconds" build/release/vlcache
  tail -q -n 3 "$logs/soak-$stream_seconds-seconds-of-streams.log"
fi
if wants signals; then  # every command under a handler without a stack of its own, interrupted, on a terminal that is resized
  suite "soak-$signals-times-signals" env VLCACHE_TEST_SIGNALS="$signals" python3 -m unittest discover -s tests/e2e -p 'test_signals.py'
fi
if wants threads; then suite soak-server-under-tsan tools/tsan_server.sh; fi
closing_line
