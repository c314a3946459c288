#!/usr/bin/env bash
# Configures and builds a preset:  tools/build.sh PRESET [TARGET...]
# Of the builds of `make test`, build/PRESET/units.txt gets a line for each compiled unit: CPU seconds of user and system,
# largest memory in kB, command (tools/budgets.py reads it).
set -euo pipefail
cd "$(dirname "$0")/.."
# `sudo make install` builds as the user who ran sudo: files of root would stop that user's next build.
if [ "$(id -u)" = 0 ] && [ -n "${SUDO_UID:-}" ] && [ "$SUDO_UID" = "$(stat -c %u .)" ] && [ "$SUDO_UID" != 0 ]; then
  HOME=$(getent passwd "$SUDO_UID" | cut -d: -f6) exec setpriv --reuid="$SUDO_UID" --regid="$SUDO_GID" --init-groups -- \
    tools/build.sh "$@"
fi
preset=$1
shift
launcher=
case $preset in ci | asan | tsan) launcher="/usr/bin/time;-a;-o;$PWD/build/$preset/units.txt;-f;%U %S %M %C" ;; esac
# Where nothing is kept from build to build, ccache only costs.
[ -z "${CI:-}" ] && command -v ccache >/dev/null && launcher="${launcher:+$launcher;}ccache"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cmake --preset "$preset" "-DCMAKE_CXX_COMPILER_LAUNCHER=$launcher" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
targets=()
for t in "$@"; do targets+=(--target "$t"); done
cmake --build --preset "$preset" "${targets[@]}"
