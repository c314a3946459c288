#!/usr/bin/env bash
# Before every commit: lint of changed files, quick unit tests, twenty end-to-end tests. Builds file by file, so that a
# missing include fails here.
set -uo pipefail
cd "$(dirname "$0")/.."
status=0
run() { "$@" || { status=1; echo "FAILED: $*"; }; }

mapfile -t changed < <({ git diff --name-only --diff-filter=d HEAD; git ls-files --others --exclude-standard; } | grep -E '\.(cc|h)$' | sort -u)
[ ${#changed[@]} = 0 ] || run clang-format-14 --dry-run --Werror "${changed[@]}"
run python3 tools/check_layers.py
run python3 tools/check_sizes.py
tools/build.sh release >build/check.log 2>&1 || { grep -E 'error|FAILED' -A4 build/check.log | head -n 60; exit 1; }
run ctest --test-dir build/release --label-regex quick --parallel "$(nproc)" --progress --output-on-failure
run python3 tools/run_python_tests.py tests/e2e --only test_run. test_server.Errors
[ "$status" = 0 ] && echo "ok: all checks, $SECONDS s"
exit "$status"
