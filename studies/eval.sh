#!/usr/bin/env bash
# Accuracy of the model that ships, beside transformers':  studies/eval.sh build/release/vlcache
exec python3 "$(dirname "$0")/tinydoc/eval.py" "$@"
