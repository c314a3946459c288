#!/usr/bin/env bash
# Installs the program of a build folder, or removes it:  tools/install.sh [BUILD]   tools/install.sh --remove [BUILD]
# BUILD: build/release. PREFIX: where to (/usr/local); DESTDIR: before it, for packages, as in make.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022  # other users run the program that root installs
remove=
[ "${1:-}" != --remove ] || { remove=1; shift; }
build=${1:-build/release}
prefix=${PREFIX:-/usr/local}
manifest=$build/install_manifest_program.txt
case $prefix in
  /*) prefix=${prefix%/} ;;
  *) echo "PREFIX: expected an absolute path, found '$prefix'" >&2; exit 2 ;;
esac

if [ -z "$remove" ]; then
  log=$(cmake --install "$build" --prefix "$prefix" --component program --strip) || {
    echo "not installed into ${DESTDIR:-}$prefix (PREFIX=\$HOME/.local needs no administrator)" >&2
    exit 1
  }
  sed -n 's/^-- \(Installing\|Up-to-date\): //p' <<<"$log"
  # The build folder stays its user's when root installs.
  [ "$(id -u)" != 0 ] || chown --reference="$build/CMakeCache.txt" "$manifest"
  exit
fi

[ -e "$manifest" ] || { echo "nothing was installed from $build" >&2; exit 2; }
mapfile -t files <"$manifest"
for file in "${files[@]}"; do
  case $file in
    "$prefix"/*) ;;
    *) echo "the last installation from $build wrote $file: expected its PREFIX, found '$prefix'" >&2; exit 2 ;;
  esac
done
for file in "${files[@]}"; do
  rm -fv "${DESTDIR:-}$file"
  folder=$(dirname "${DESTDIR:-}$file")
  case $folder in */vlcache) rmdir --ignore-fail-on-non-empty "$folder" 2>/dev/null || true ;; esac
done
rm -f "$manifest"
