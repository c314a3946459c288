#!/usr/bin/env bash
# A page, a few questions, answers with timings; builds the program first, which stays as build/release/vlcache.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ ! -x build/demo/vlcache ]; then
  echo "The first time this installs the Debian packages that are missing (their names and sizes come first) and builds" >&2
  echo "build/release/vlcache (about 50 MB; about 6 CPU minutes, 3.5 minutes on two idle cores)." >&2
fi
tools/install_deps.sh build
tools/build.sh demo vlcache
mkdir -p build/release
cp -f build/demo/vlcache build/demo/vlcache-video build/release/
exec python3 tools/demo.py build/release/vlcache
