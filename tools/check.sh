#!/usr/bin/env bash
# Before every commit: lint of changed files, quick unit tests, twenty end-to-end tests. Builds file by file, so that a
# missing include fails here. Test programs that passed and were not linked again are not run, unless fixtures changed.
set -uo pipefail
cd "$(dirname "$0")/.."
status=0
run() { "$@" || { status=1; echo "FAILED: $*"; }; }

mapfile -t changed < <({ git diff --name-only --diff-filter=d HEAD; git ls-files --others --exclude-standard; } | grep -E '\.(cc|h)$' | sort -u)
[ ${#changed[@]} = 0 ] || run clang-format-14 --dry-run --Werror "${changed[@]}"
run python3 tools/check_layers.py
run python3 tools/check_sizes.py
tools/build.sh release >build/check.log 2>&1 || { grep -E 'error|FAILED' -A4 build/check.log | head -n 60; exit 1; }

passed=build/release/passed  # a stamp for each program whose tests passed
mkdir -p "$passed"
[ -z "$(find tests/fixtures tests/corpus models -newer "$passed" -print -quit)" ] || rm -f "$passed"/*
programs=()
while read -r program; do
  name=$(basename "$program" _test)
  [ "$passed/$name" -nt "$program" ] || programs+=("$name")
done < <(find build/release/src build/release/tests -name 'vlcache_*_test' -type f)
if [ ${#programs[@]} -gt 0 ]; then
  tests=$(printf '|%s' "${programs[@]#vlcache_}")
  if ctest --test-dir build/release --label-regex quick --tests-regex "^(${tests:1})(-[0-9]+)?\$" --parallel $((2 * $(nproc))) --output-on-failure --quiet; then
    for name in "${programs[@]}"; do touch "$passed/$name"; done
  else
    status=1
  fi
fi
echo "ran ${#programs[@]} test programs; the others were not linked again since they passed"
run python3 tools/run_python_tests.py tests/e2e --only test_run. test_server.Errors
[ "$status" = 0 ] && echo "ok: all checks, $SECONDS s"
exit "$status"
