"""WordPage under M-RoPE: a Qwen2.5-VL tower that says the word of every cell as the language model's own embedding of it, and the LoRA of lora.py
taught on under the positions of images.
  python mrope.py vision OUT --minutes 30
  python mrope.py lora OUT --minutes 40          (continues from the LoRA in parts.safetensors, or from OUT/lora.pt)
Both save to OUT every few minutes and continue from there when they are started again; touch OUT/stop to end early.
"""
import argparse, os, random, sys, time
import torch
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, ".."), HERE]
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2_5_VLConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel, Qwen2_5_VLTextModel
from lora import SYSTEMS, Format, add_lora
from pages import SIDE, WORDS
from vision import MEAN, STD, Pages

# Patches of 28 pixels, two by two a token: a cell is a token. Windows of two by two tokens, every other layer sees all.
PATCH, MERGE, FRAMES = 28, 2, 2
VISION = dict(hidden_size=256, depth=4, num_heads=4, intermediate_size=768, patch_size=PATCH, spatial_merge_size=MERGE, temporal_patch_size=FRAMES,
              window_size=112, fullatt_block_indexes=[1, 3], hidden_act="silu", out_hidden_size=576)
SECTIONS = [8, 12, 12]
SPECIAL = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]


def text_config(lm, vocab_size):
    """SmolLM2's as Qwen2.5-VL's: biases of q, k, v are zero, text has t = h = w."""
    c = lm.config
    theta = (c.rope_parameters or {}).get("rope_theta", 100000.0)
    return dict(vocab_size=vocab_size, hidden_size=c.hidden_size, intermediate_size=c.intermediate_size, num_hidden_layers=c.num_hidden_layers,
                num_attention_heads=c.num_attention_heads, num_key_value_heads=c.num_key_value_heads, rms_norm_eps=c.rms_norm_eps, hidden_act="silu",
                max_position_embeddings=c.max_position_embeddings, tie_word_embeddings=True,
                rope_parameters=dict(rope_type="default", rope_theta=theta, mrope_section=SECTIONS))


def config(text):
    return Qwen2_5_VLConfig(text_config=text, vision_config=VISION, tie_word_embeddings=True)


def text_model(lm):
    """The language model under M-RoPE, with the weights of `lm`."""
    c = config(text_config(lm, lm.config.vocab_size)).text_config
    c._attn_implementation = "sdpa"
    m = Qwen2_5_VLTextModel(c).to(lm.dtype)
    w = {k[len("model."):]: v for k, v in lm.state_dict().items() if k.startswith("model.")}
    for i in range(c.num_hidden_layers):
        for name in "qkv":
            w[f"layers.{i}.self_attn.{name}_proj.bias"] = torch.zeros_like(m.layers[i].self_attn.__getattr__(f"{name}_proj").bias)
    m.load_state_dict(w)
    return m


def merge_lora(lm, lora):
    """Adds products of LoRA factors, by module, to the language model's weights."""
    modules = dict(lm.named_modules())
    for name in {k[:-2] for k in lora}:
        modules[name].weight.data += (2 * lora[name + ".b"].float() @ lora[name + ".a"].float()).to(modules[name].weight.dtype)


def shipped_lora():
    parts = load_file(os.path.join(HERE, "..", "parts.safetensors"))
    return {k[len("lora."):]: v for k, v in parts.items() if k.startswith("lora.")}


def patch_rows(x):
    """Normalised images [n, 3, H, W] as the rows that Qwen2VLImageProcessor makes of still images: [n * patches, 3 * FRAMES * PATCH ** 2]."""
    n, c, h, w = x.shape
    gh, gw = h // PATCH, w // PATCH
    x = x.unsqueeze(1).expand(n, FRAMES, c, h, w)
    x = x.reshape(n, FRAMES, c, gh // MERGE, MERGE, PATCH, gw // MERGE, MERGE, PATCH).permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return x.reshape(n * gh * gw, c * FRAMES * PATCH * PATCH), torch.tensor([[1, gh, gw]] * n)


class Clock:
    """Minutes of work, over all runs; saves every few minutes."""
    def __init__(self, path, minutes): self.path, self.minutes, self.used, self.begin, self.saved = path, minutes, 0.0, time.time(), 0.0
    def tick(self): now = time.time(); self.used += (now - self.begin) / 60; self.begin = now; return self.used / self.minutes
    def ends(self): return self.used >= self.minutes or os.path.exists(os.path.join(os.path.dirname(self.path), "stop"))
    def save(self, state):
        if self.used - self.saved < 2 and not self.ends(): return
        torch.save({**state, "minutes": self.used}, self.path + ".new"); os.replace(self.path + ".new", self.path); self.saved = self.used


def train_vision(a):
    path = os.path.join(a.out, "vision.pt"); clock = Clock(path, a.minutes); lm = AutoModelForCausalLM.from_pretrained(a.base, dtype=torch.float32)
    tok = AutoTokenizer.from_pretrained(a.base); one = lambda s: tok(s, add_special_tokens=False).input_ids[0]
    table = lm.get_input_embeddings().weight.data
    E = table[torch.tensor([one("\n")] + [one("." if w == "." else " " + w) for w in WORDS])].clone(); var = E.var().item(); C = torch.nn.functional.normalize(E, dim=-1)
    c = config(text_config(lm, lm.config.vocab_size)).vision_config; c._attn_implementation = "sdpa"; del lm
    v = Qwen2_5_VisionTransformerPretrainedModel(c); params = list(v.parameters()); opt = torch.optim.AdamW(params, lr=a.lr, betas=(0.9, 0.98), weight_decay=0.01)
    step = 0
    if os.path.exists(path): s = torch.load(path); v.load_state_dict(s["v"]); opt.load_state_dict(s["opt"]); step, clock.used = s["step"], s["minutes"]
    dl = iter(torch.utils.data.DataLoader(Pages(a.batch, 5 + step), batch_size=None, num_workers=1, prefetch_factor=4)); avg = None
    while not clock.ends():
        frac = clock.tick(); x, y = next(dl); x = ((x.permute(0, 3, 1, 2).float() / 255) - MEAN) / STD; rows, grid = patch_rows(x)
        for g in opt.param_groups: g["lr"] = a.lr * min(1, (step + 1) / 100) * min(1, 1.4 * (1 - frac) + 0.02)
        with torch.autocast("cpu", dtype=torch.bfloat16): o = v(rows, grid_thw=grid)
        o = (o.pooler_output if hasattr(o, "pooler_output") else o).float().view(len(y), -1, E.shape[1])
        mse = (o - E[y]).square().mean() / var; z = torch.nn.functional.normalize(o, dim=-1) @ C.T * 20; l = mse + torch.nn.functional.cross_entropy(z.flatten(0, 1), y.flatten())
        l.backward(); torch.nn.utils.clip_grad_norm_(params, 1.0); opt.step(); opt.zero_grad(set_to_none=True); step += 1
        acc = (z.argmax(-1) == y).float().mean().item(); avg = acc if avg is None else 0.98 * avg + 0.02 * acc
        if step % 50 == 0: print(f"step {step} mse {mse.item():.4f} loss {l.item():.4f} right {acc:.4f} avg {avg:.4f} {clock.used:.1f}m", flush=True)
        clock.save({"v": v.state_dict(), "opt": opt.state_dict(), "step": step})


class ImageFormat(Format):
    """lora.py's conversations as Qwen2.5-VL's template writes them, with the positions of every token."""
    def __init__(self, tok): super().__init__(tok); self.edge = self.blank  # vision_start and vision_end look like line ends
    def chat(self, pages, size, turns, system):
        ids, lab, pos, at = [], [], [], 0
        def put(x, learn=False):
            nonlocal at
            ids.extend(x); lab.extend(x if learn else [-100] * len(x)); pos.extend([(at + i,) * 3 for i in range(len(x))]); at += len(x)
        if system: put(self.t(f"<|im_start|>system\n{system}<|im_end|>\n"))
        for i, (_, q, a) in enumerate(turns):
            put(self.t("<|im_start|>user\n"))
            for p in pages if i == 0 else ():
                put([self.edge]); x = self.cells(p, size); ids.extend(x); lab.extend([-100] * len(x))
                pos.extend([(at, at + c // SIDE, at + c % SIDE) for c in range(len(x))]); at += max(-(-len(x) // SIDE), SIDE); put([self.edge])
            put(self.t(q + "<|im_end|>\n<|im_start|>assistant\n")); put(self.t(a + "<|im_end|>"), True); put(self.t("\n"))
        return ids, lab, pos


class Wrapped(torch.nn.Module):
    """So that add_lora finds m.model.layers."""
    def __init__(self, model): super().__init__(); self.model = model


def train_lora(a):
    path = os.path.join(a.out, "lora.pt"); clock = Clock(path, a.minutes); tok = AutoTokenizer.from_pretrained(a.base)
    lm = AutoModelForCausalLM.from_pretrained(a.base, dtype=torch.bfloat16); merge_lora(lm, shipped_lora())
    head = lm.get_output_embeddings().weight; m = Wrapped(text_model(lm))
    for p in m.parameters(): p.requires_grad_(False)
    add_lora(m, a.rank); own = {n: p for n, p in m.named_parameters() if p.requires_grad}; params = list(own.values())
    opt = torch.optim.AdamW(params, lr=a.lr, betas=(0.9, 0.98), weight_decay=0.0); step, avg = 0, None
    if os.path.exists(path):
        s = torch.load(path); step, clock.used = s["step"], s["minutes"]; opt.load_state_dict(s["opt"])
        for n, p in own.items(): p.data = s["lora"][n]
    f, gen, fmt = Facts(1017 + step), random.Random(3 + step), ImageFormat(tok)
    while not clock.ends():
        frac = clock.tick(); n_pages, T = gen.choice([(1, 432), (2, 704), (2, 704), (3, 960), (4, 1232)]); n = max(1, a.tokens // T)
        ids = torch.full((n, T), tok.eos_token_id); lab = torch.full_like(ids, -100); pos = torch.zeros(3, n, T, dtype=torch.long)
        for i in range(n):
            taken = set(); pages = [f.page(taken, 256 - gen.choice([0, 0, 0, 85])) for _ in range(n_pages)]
            x, y, p = fmt.chat(pages, 256, f.turns(pages, 8), gen.choice(SYSTEMS)); k = min(T, len(x))
            ids[i, :k], lab[i, :k], pos[:, i, :k] = torch.tensor(x[:k]), torch.tensor(y[:k]), torch.tensor(p[:k]).T
        for g in opt.param_groups: g["lr"] = a.lr * min(1, (step + 1) / 20) * min(1, 1.5 * (1 - frac) + 0.02)
        h = m.model(input_ids=ids, position_ids=pos, use_cache=False).last_hidden_state; want = lab[:, 1:]; k = want >= 0
        z = torch.nn.functional.linear(h[:, :-1][k], head).float(); l = torch.nn.functional.cross_entropy(z, want[k])
        l.backward(); torch.nn.utils.clip_grad_norm_(params, 1.0); opt.step(); opt.zero_grad(); step += 1; avg = l.item() if avg is None else 0.95 * avg + 0.05 * l.item()
        if step % 10 == 0: print(f"step {step} loss {avg:.4f} right {(z.argmax(-1) == want[k]).float().mean():.3f} T {T} {clock.used:.1f}m", flush=True)
        clock.save({"lora": {n: p.detach() for n, p in own.items()}, "opt": opt.state_dict(), "step": step})


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("what", choices=["vision", "lora"]); ap.add_argument("out"); ap.add_argument("--base", default="smollm2"); ap.add_argument("--minutes", type=float, default=30)
    ap.add_argument("--lr", type=float, default=1e-3); ap.add_argument("--batch", type=int, default=4); ap.add_argument("--rank", type=int, default=32); ap.add_argument("--tokens", type=int, default=1600)
    a = ap.parse_args(); torch.manual_seed(0); os.makedirs(a.out, exist_ok=True)
    train_vision(a) if a.what == "vision" else train_lora(a)


if __name__ == "__main__": main()
