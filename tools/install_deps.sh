#!/usr/bin/env bash
# Installs the Debian 12 packages that build and tests need; does nothing when all are there. docs/dependencies.md says why each.
set -euo pipefail
packages=(
  g++ cmake ninja-build ccache pkg-config git python3
  libdnnl-dev libhwy-dev nlohmann-json3-dev libcli11-dev libeigen3-dev
  libjpeg62-turbo-dev libpng-dev libwebp-dev libgif-dev libicu-dev libpcre2-dev libssl-dev libxxhash-dev libhiredis-dev libboost1.81-dev
  libgtest-dev libgmock-dev redis-server python3-jsonschema clang-14 libclang-rt-14-dev clang-format-14
)
missing=()
for p in "${packages[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
done
[ ${#missing[@]} -gt 0 ] || exit 0
echo "installing Debian packages: ${missing[*]}" >&2
sudo=""
[ "$(id -u)" = 0 ] || sudo="sudo"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -q >/dev/null
$sudo apt-get install -qy --no-install-recommends "${missing[@]}" >/dev/null || {
  echo "apt-get could not install: ${missing[*]} (vlcache is built on Debian 12)" >&2
  exit 1
}
