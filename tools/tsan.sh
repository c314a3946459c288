#!/usr/bin/env bash
# Unit tests of all that threads share under ThreadSanitizer: base, store, the server, the engine beside tiers. `make test`
# has those of base, store and server/http; the others compile the whole program once more. When all pass on a clean
# checkout, tools/tsan-passed gets the commit: commit that file. Lint says when it is to be run again (check_tsan.py).
set -euo pipefail
cd "$(dirname "$0")/.."
export TSAN_OPTIONS="halt_on_error=1"
tools/build.sh tsan-all vlcache_tests
rm -rf build/tsan-all/results build/tsan-all/junit.xml
ctest --test-dir build/tsan-all --parallel $((2 * $(nproc))) --output-junit junit.xml --output-on-failure || true
python3 tools/results.py build/tsan-all
echo "$((SECONDS / 60)) min $((SECONDS % 60)) s"
if [ -z "$(git status --porcelain -- src tests)" ]; then
  git rev-parse HEAD >tools/tsan-passed
  echo "tools/tsan-passed names this commit: commit it"
else
  echo "src or tests have changes that are not committed: tools/tsan-passed stays as it is"
fi
