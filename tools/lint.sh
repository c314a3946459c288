#!/usr/bin/env bash
# Checks without building: formatting, include layers, sizes, words, documents. Warnings are errors in every build.
set -uo pipefail
cd "$(dirname "$0")/.."
status=0
badly=$(git ls-files '*.cc' '*.h' | xargs -r clang-format-14 --dry-run 2>&1 | grep -oE '^[^:]+\.(cc|h)' | sort -u)
if [ -n "$badly" ]; then
  echo "not formatted (make format):"
  echo "$badly"
  status=1
else
  echo "ok: formatting"
fi
python3 tools/check_layers.py || status=1
python3 tools/check_sizes.py || status=1
python3 tools/check_words.py || status=1
python3 tools/check_tsan.py || status=1
python3 tools/draw.py --check || status=1
python3 tools/check_docs.py || status=1
exit $status
