#!/usr/bin/env bash
# Installs the Debian 12 packages that build and tests need, and Playwright into .venv; does nothing when all are there.
# docs/dependencies.md says why each.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=(
  g++ cmake ninja-build ccache pkg-config git python3
  libdnnl-dev libhwy-dev nlohmann-json3-dev libcli11-dev libeigen3-dev
  libjpeg62-turbo-dev libpng-dev libwebp-dev libgif-dev libicu-dev libpcre2-dev libssl-dev libxxhash-dev libhiredis-dev libboost1.81-dev
  libgtest-dev libgmock-dev redis-server python3-jsonschema clang-14 libclang-rt-14-dev clang-format-14
  chromium fonts-dejavu-core python3-venv
)
missing=()
for p in "${packages[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "installing Debian packages: ${missing[*]}" >&2
  sudo=""
  [ "$(id -u)" = 0 ] || sudo="sudo"
  export DEBIAN_FRONTEND=noninteractive
  $sudo apt-get update -q >/dev/null
  $sudo apt-get install -qy --no-install-recommends "${missing[@]}" >/dev/null || {
    echo "apt-get could not install: ${missing[*]} (vlcache is built on Debian 12)" >&2
    exit 1
  }
fi
# Tests of the page only, which are skipped without it.
wanted=$(cat tests/page/requirements.txt)
if ! compgen -G ".venv/lib/python3*/site-packages/${wanted/==/-}.dist-info" >/dev/null; then
  echo "installing $wanted into .venv" >&2
  { python3 -m venv .venv && .venv/bin/pip install -q --disable-pip-version-check -r tests/page/requirements.txt; } >&2 ||
    echo "it could not be installed: tests of the page will be skipped" >&2
fi
