#!/usr/bin/env bash
# A page, a few questions, answers with timings; builds the program first, which stays as build/release/vlcache.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ ! -x build/demo/vlcache ]; then
  echo "The first time this installs Debian packages (compiler, CMake, libraries: up to 1 GB on a bare system) and builds" >&2
  echo "build/release/vlcache (60 MB of disk; two to four minutes on two cores)." >&2
fi
tools/install_deps.sh build
tools/build.sh demo vlcache
mkdir -p build/release
cp -f build/demo/vlcache build/release/vlcache
exec python3 tools/demo.py build/release/vlcache
