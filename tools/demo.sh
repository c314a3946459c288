#!/usr/bin/env bash
# A page, a few questions, answers with timings:  tools/demo.sh build/release/vlcache
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 tools/demo.py "$1"
