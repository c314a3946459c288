#!/usr/bin/env bash
# Installs Debian 12 packages, by group; does nothing when all of them are there. docs/dependencies.md says why each.
#   tools/install_deps.sh build        what building and running the program needs
#   tools/install_deps.sh build test   and what tests need: also Python packages for tests, into .venv
set -euo pipefail
cd "$(dirname "$0")/.."
build=(
  g++ cmake ninja-build pkg-config python3
  libhwy-dev nlohmann-json3-dev libcli11-dev libedit-dev
  libjpeg62-turbo-dev libpng-dev zlib1g-dev libzstd-dev libwebp-dev libgif-dev libtiff-dev libicu-dev libpcre2-dev libssl-dev libxxhash-dev libhiredis-dev libboost1.81-dev
  libjs-katex poppler-utils libavformat-dev libavcodec-dev libswscale-dev libavutil-dev
)
test=(
  ccache git time libgtest-dev libgmock-dev redis-server python3-jsonschema clang-14 libclang-rt-14-dev lld-14 clang-format-14
  chromium fonts-dejavu-core python3-venv nginx-light
)
packages=()
for group in "${@:-build}"; do
  declare -n list=$group
  packages+=("${list[@]}")
done
missing=()
for p in "${packages[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
done
if [ ${#missing[@]} -gt 0 ]; then
  sudo=""
  [ "$(id -u)" = 0 ] || sudo="sudo"
  export DEBIAN_FRONTEND=noninteractive
  echo "installing Debian packages: ${missing[*]}" >&2
  $sudo apt-get update -q >/dev/null
  # What apt-get would say before it asks whether to continue: the download's size and the disk space.
  { apt-get install --assume-no --no-install-recommends "${missing[@]}" 2>/dev/null || true; } |
    grep -E '^(Need to get|After this operation)' >&2 || true
  $sudo apt-get install -qy --no-install-recommends "${missing[@]}" >/dev/null || {
    echo "apt-get could not install: ${missing[*]} (vlcache is built on Debian 12)" >&2
    exit 1
  }
fi
[[ " $* " == *" test "* ]] || exit 0
# For tests of the page and of clients' libraries only, which are skipped without them.
wanted=()
while read -r package; do
  compgen -G ".venv/lib/python3*/site-packages/${package/==/-}.dist-info" >/dev/null || wanted+=("$package")
done <tests/requirements.txt
if [ ${#wanted[@]} -gt 0 ]; then
  echo "installing ${wanted[*]} into .venv" >&2
  { python3 -m venv .venv && .venv/bin/pip install -q --disable-pip-version-check "${wanted[@]}"; } >&2 ||
    echo "they could not be installed: tests of the page and of clients will be skipped" >&2
fi
