#!/usr/bin/env python3
"""Error of codecs of image KV (src/base/numeric/row_codec.h), in PyTorch:  python codec_error.py MODEL DATA N
The K before rotation and V of image tokens, as a prompt by itself has them, are coded and decoded, everything after them is computed with that. Prints, per codec, the
divergence of the logits along the right answer from those of f32, and the relative error of attention outputs of the tokens after the images, rms over layers and samples."""
import sys, json, os, math, torch
from transformers import AutoProcessor, LlavaForConditionalGeneration
from PIL import Image
model_dir, data, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
proc = AutoProcessor.from_pretrained(model_dir); model = LlavaForConditionalGeneration.from_pretrained(model_dir, dtype=torch.float32).eval()
cfg = model.config.text_config; H, Hk, d = cfg.num_attention_heads, cfg.num_key_value_heads, getattr(cfg, "head_dim", None) or cfg.hidden_size // cfg.num_attention_heads
layers = model.model.language_model.layers
def had(m):
    h = torch.ones(1, 1)
    while h.shape[0] < m: h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
    return h / math.sqrt(m)
def up(s):  # to bf16, upwards
    b = s.to(torch.bfloat16).float(); nxt = (b.view(torch.int32) + 65536).view(torch.float32)
    return torch.where(b < s, nxt, b)
def quant(x, bits, group, rot, scale, mse, q4_0):
    shape = x.shape; x = x.reshape(-1, d)
    h = torch.block_diag(*[had(rot)] * (d // rot)) if rot else torch.eye(d); x = x @ h
    g = x.reshape(-1, d // group, group) if group else x.reshape(-1, 1, d)
    top = 2 ** (bits - 1) - 1
    m = g.abs().amax(-1, keepdim=True)
    def at(s):
        s = up(s) if scale == "bf16" else s
        s = s.clamp(min=1e-30)
        return (g / s).round().clamp(-top, top) * s
    if mse:
        best, be = None, None
        for f in (1.0, .95, .9, .85, .8, .75, .7):
            y = at(m * f / top); e = ((y - g) ** 2).sum(-1, keepdim=True)
            if best is None: best, be = y, e
            else: best = torch.where(e < be, y, best); be = torch.minimum(e, be)
        y = best
    elif q4_0:
        idx = g.abs().argmax(-1, keepdim=True); mx = g.gather(-1, idx); s = mx / -(top + 1)
        s = torch.where(s == 0, torch.ones_like(s), s); s = s.to(torch.bfloat16).float()
        y = (g / s).round().clamp(-top - 1, top) * s
    else: y = at(m / top)
    return (y.reshape(-1, d) @ h).to(torch.bfloat16).float().reshape(shape)
# name: (bits, values under a scale or 0: d, values rotated together or 0: none, scale, searched, as GGML's q4_0)
V = {"int8": (8, 0, d, "bf16", 0, 0), "int8 not rotated": (8, 0, 0, "bf16", 0, 0), "int8 not rotated, f32 scale": (8, 0, 0, "f32", 0, 0), "int4": (4, 32, 32, "bf16", 0, 0)}
for group in (0, 32, 16):
    V[f"int4 not rotated, a scale for {group or d}"] = (4, group, 0, "bf16", 0, 0); V[f"int4 rotated as a whole, a scale for {group or d}"] = (4, group, d, "bf16", 0, 0)
V["int4 searched scale"] = (4, 32, 32, "bf16", 1, 0); V["int4 of 16 levels"] = (4, 32, 32, "bf16", 0, 1)
V["bf16"] = None
if len(sys.argv) > 4: V = {k: v for k, v in V.items() if k in sys.argv[4].split(";")}  # names, separated by ;
state = {"mode": None}; K, Vv, O = {}, {}, {}
def khook(store):
    def hook(mod, args, out):
        i = mod.layer
        if state["mode"] == "record": store[i] = out.detach().clone(); return out
        if state["mode"] is None: return out
        name = state["mode"]; x = store[i].clone(); rows = state["rows"]
        v = V[name]
        if v is None: x[0, rows] = x[0, rows].to(torch.bfloat16).float()
        else: x[0, rows] = quant(x[0, rows].reshape(-1, Hk, d), *v).reshape(-1, Hk * d)
        out = out.clone(); out[0, rows] = x[0, rows]; return out
    return hook
def ohook(mod, args):
    O.setdefault(state["mode"], {})[mod.layer] = args[0].detach()[0]
for i, l in enumerate(layers):
    for m in (l.self_attn.k_proj, l.self_attn.v_proj, l.self_attn.o_proj): m.layer = i
    l.self_attn.k_proj.register_forward_hook(khook(K)); l.self_attn.v_proj.register_forward_hook(khook(Vv)); l.self_attn.o_proj.register_forward_pre_hook(ohook)
samples = [json.loads(x) for x in open(os.path.join(data, "eval.jsonl"))][:n]
err = {k: [0.0] * 4 for k in V}; cnt = 0; tot = 0
for s in samples:
    images = [Image.open(os.path.join(data, p)).convert("RGB") for p in s["images"]]
    q, a = s["question"], s["answer"]
    text = proc.apply_chat_template([{"role": "user", "content": [{"type": "image"} for _ in images] + [{"type": "text", "text": q}]}], add_generation_prompt=True) + a
    x = proc(images=images, text=text, return_tensors="pt")
    rows = (x["input_ids"][0] == model.config.image_token_id).nonzero()[:, 0]; first = int(rows[-1]) + 1
    na = len(proc.tokenizer(a, add_special_tokens=False)["input_ids"])
    with torch.no_grad():
        state.update(mode="record", rows=rows); ref = torch.log_softmax(model(**x).logits[0, -na - 1:-1], -1)
        for name in V:
            state["mode"] = name; lp = torch.log_softmax(model(**x).logits[0, -na - 1:-1], -1)
            e = err[name]; e[0] += float((ref.exp() * (ref - lp)).sum()); e[1] += int((ref.argmax(-1) != lp.argmax(-1)).sum())
            r = [float(((O[name][i][first:] - O["record"][i][first:]) ** 2).sum() / (O["record"][i][first:] ** 2).sum()) for i in range(len(layers))]
            e[2] += sum(r) / len(r); e[3] = max(e[3], max(r))
    cnt += na; tot += 1
print(f"{len(samples)} samples, {cnt} answer tokens, {model_dir}")
for k, e in sorted(err.items(), key=lambda t: t[1][0]): print(f"{k:40} KL/token {e[0] / cnt:.3e}  other tokens {e[1]:3}  attention output error {math.sqrt(e[2] / tot):.4f} rms, worst layer {math.sqrt(e[3]):.4f}", flush=True)
