#!/usr/bin/env bash
# Tokens/s of the 135M, 0.5B and 1.1B shapes and of CLIP-L with random weights, beside the machine's limits:  tools/bench.sh VLCACHE [flags of `vlcache bench`]
set -euo pipefail
vlcache=$1
shift
cd "$(dirname "$0")/.."
for shape in 135m 0.5b 1.1b; do
  "$vlcache" bench --random-weights "bench/shapes/$shape.json" -p 512,2048 -n 64 -d 0 "$@"
  "$vlcache" bench --random-weights "bench/shapes/$shape.json" -p 512 -n 64 -d 4096,16384 --fill random "$@"
done
"$vlcache" bench --random-weights bench/shapes/llava-next-1.1b.json -p 0 -n 0 --tiles 1,5 "$@"
