#!/usr/bin/env bash
# What measure.py and `tune reuse` ask, with all that they need, for a machine of another Linux without network:
#   studies/wordpage/bundle.sh MODEL        writes build/bundle, and build/up0, up1, ...: the same in pieces of 58 MiB
# There:  bash build/up0/unpack.sh && bash build/bundle/go.sh OUT SECONDS     (in any folder that has build/up*)
# WORDPAGE_PRUNE=0.5: clips are asked about under video_prune, too.
set -euo pipefail
cd "$(dirname "$0")/../.."
model=$1 python=${WORDPAGE_PYTHON:-build/wordpage/venv/bin/python} tools=$PWD/studies/wordpage
prune=(${WORDPAGE_PRUNE:+--prune "$WORDPAGE_PRUNE"})
python=$(realpath -s "$python")
rm -rf build/bundle build/up[0-9]*
mkdir -p build/bundle/{lib,model,data}
measure() { (cd build/bundle && "$python" "$tools/measure.py" "$@"); }
measure edits data/edits --samples 500 --seed 6001 --per-job 25
measure frames data/frames --samples 100 --seed 6101 --per-job 25
measure dedup data/dedup --samples 200 --seed 6201 --per-job 10
measure clips data/clips8 --samples 25 --frames 8 --seed 6301 --per-job 5 "${prune[@]}"
measure clips data/clips32 --samples 25 --frames 32 --seed 6302 --per-job 3 "${prune[@]}"
measure clips data/clips128 --samples 25 --frames 128 --strips 1 --seed 6303 --per-job 1 "${prune[@]}"
measure clips data/still32 --samples 15 --frames 32 --still --seed 6304 --per-job 3 --long 0 "${prune[@]}"
measure clips data/clips128x2 --samples 6 --frames 128 --seed 6305 --per-job 1 --long 2 "${prune[@]}"
"$python" "$tools/make_eval.py" build/bundle/data/tune --samples 600 --pages 1,2 --seed 6401 --basic
"$python" -c 'import glob; from PIL import Image; [Image.open(p).convert("L").save(p) for p in glob.glob("build/bundle/data/tune/pages/*")]'  # pages are gray: half the bytes
split -d -a 3 -l 60 build/bundle/data/tune/eval.jsonl build/bundle/data/tune/eval- --additional-suffix .jsonl

# Jobs of a measurement are spread over a part of the time, so that each has results when time ends.
jobs() { # FROM TO NAME COMMAND-WITH-{}: a line for each of the files
  local files=(build/bundle/data/$3) i
  for ((i = 0; i < ${#files[@]}; ++i)); do
    local file=${files[i]#build/bundle/} name
    name=${file#data/} name=${name/jobs\//} name=${name%.jsonl}
    echo "$(awk "BEGIN { print $1 + ($2 - $1) * ($i + 0.5) / ${#files[@]} }") $name ${4//\{\}/$file}"
  done
}
ask='$VLCACHE run -m model -t 2 --cache-ram 1GiB --kv-memory 2GiB --requests {}'
{
  jobs 0 0.6 'edits/jobs/*.jsonl' "$ask"
  jobs 0.1 0.6 'frames/jobs/*.jsonl' "$ask"
  jobs 0 0.6 'clips8/jobs/*.jsonl' "$ask"
  jobs 0 0.6 'clips32/jobs/*.jsonl' "$ask"
  jobs 0 0.7 'clips128/jobs/*.jsonl' "$ask"
  jobs 0.1 0.7 'still32/jobs/*.jsonl' "$ask"
  jobs 0.1 0.8 'dedup/jobs/*.jsonl' "$ask"
  jobs 0.15 0.85 'tune/eval-*.jsonl' '$VLCACHE tune reuse -m model -t 2 --cache-ram 1GiB --kv-memory 2GiB --data {} --compare 60 --profile 0 -o $OUT/{}.plan.json'
  jobs 0.8 1 'clips128x2/jobs/*.jsonl' "$ask"
} | sort -n | cut -d' ' -f2- >build/bundle/jobs.txt

cp build/release/vlcache build/bundle/vlcache
strip build/bundle/vlcache
cp "$(command -v zstd)" build/bundle/lib/zstd
ldd build/release/vlcache build/bundle/lib/zstd | awk '/=> \//{print $3}' | sort -u | xargs cp -L -t build/bundle/lib
cp -L /lib64/ld-linux-x86-64.so.2 build/bundle/lib/
cp "$model"/* build/bundle/model/
cp studies/wordpage/run_jobs.sh build/bundle/
cat >build/bundle/go.sh <<'END'
#!/usr/bin/env bash
# go.sh OUT SECONDS
set -eu
mkdir -p "$1/data/tune"
export OUT=$(realpath "$1") VLCACHE="lib/ld-linux-x86-64.so.2 --library-path lib ./vlcache"
cd "$(dirname "$0")"
bash run_jobs.sh "$OUT" "$2" <jobs.txt
END
cat >build/unpack.sh <<'END'
#!/usr/bin/env bash
# Joins build/up*: the bundle
set -eu
cd "$(dirname "$0")/.."
mkdir -p bundle
cat up[0-9]*/part | tar -x -C bundle
cd bundle
zstd() { lib/ld-linux-x86-64.so.2 --library-path lib lib/zstd "$@"; }
zstd -qdf --long=27 rest.tar.zst && tar -xf rest.tar && zstd -qdf model.zst -o model/model.safetensors
rm rest.tar rest.tar.zst model.zst
END
packed=build/packed
mkdir -p $packed/lib
(cd build/bundle && tar -c --exclude model/model.safetensors ./* | zstd -q -10 --long=27 -f -o ../packed/rest.tar.zst)
[ -f $packed/model.zst ] || zstd -q -12 build/bundle/model/model.safetensors -o $packed/model.zst
cp build/bundle/lib/zstd $packed/lib/
ldd build/bundle/lib/zstd | awk '/=> \//{print $3}' | xargs cp -L -t $packed/lib
cp -L /lib64/ld-linux-x86-64.so.2 $packed/lib/
tar -c -C $packed lib rest.tar.zst model.zst | split -d -a 1 -b 58M - build/piece
for piece in build/piece[0-9]; do mkdir -p "build/up${piece#build/piece}" && mv "$piece" "build/up${piece#build/piece}/part"; done
mv build/unpack.sh build/up0/
du -shc build/up[0-9]*
