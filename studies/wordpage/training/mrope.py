"""WordPage under M-RoPE: a Qwen2.5-VL tower that says the words of a page, and the LoRA of lora.py taught on under the positions of images.
  python mrope.py vision OUT --minutes 4 --device cuda       the tower
  python mrope.py lora OUT --minutes 6 --device cuda         the LoRA, on what the tower is taught to say (may run beside it)
  python mrope.py joint OUT --minutes 3 --device cuda        both, on drawn pages
  python mrope.py parts OUT mrope.safetensors                what assemble.py reads
All save to OUT every two minutes and continue from there when they are started again; touch OUT/stop to end early.

Under M-RoPE the cells of a page share t, and neighbours in a row differ in w alone, which turns the lowest frequencies: attention can hardly tell them apart.
In released models the tower's features say where a patch stands. Here they say which cell comes before it: a cell is the language model's embedding of its word,
and, each with less weight and its channels shuffled in a way of its own, those of the three words before it (`Said`).
"""
import argparse, os, random, sys, time
import torch
HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = os.path.join(HERE, "../../../tools/wordpage")
sys.path[:0] = [os.path.join(HERE, ".."), TOOLS, HERE]
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2_5_VLConfig
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as qwen
from assemble import merge_lora, part
from lora import SYSTEMS, Format, Lora
from pages import SIDE, WORDS, Facts, Printer
from vision import MEAN, STD, Pages

# Patches of 28 pixels, two by two a token: a cell is a token. Windows of two by two tokens, every other layer sees all.
PATCH, MERGE, FRAMES = 28, 2, 2
VISION = dict(hidden_size=256, depth=6, num_heads=4, intermediate_size=768, patch_size=PATCH, spatial_merge_size=MERGE, temporal_patch_size=FRAMES,
              window_size=112, fullatt_block_indexes=[1, 3, 5], hidden_act="silu", out_hidden_size=576)
SECTIONS = [8, 12, 12]
SPECIAL = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
CELLS = SIDE * SIDE


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


def with_biases(weights, c):
    """Names and weights of a Llama as Qwen2.5-VL's: biases of q, k and v that are zero."""
    n = {"q": c.hidden_size, "k": c.hidden_size // c.num_attention_heads * c.num_key_value_heads}; n["v"] = n["k"]
    return weights | {f"layers.{i}.self_attn.{x}_proj.bias": torch.zeros(n[x]) for i in range(c.num_hidden_layers) for x in "qkv"}


def text_model(lm):
    """The language model under M-RoPE, with the weights of `lm`."""
    c = config(text_config(lm, lm.config.vocab_size)).text_config; c._attn_implementation = "sdpa"
    m = qwen.Qwen2_5_VLTextModel(c).to(lm.dtype); m.load_state_dict(with_biases(part(lm.state_dict(), "model"), c)); return m


def shipped_lora(): return part(load_file(os.path.join(TOOLS, "parts.safetensors")), "lora")


def patch_rows(x):
    """Normalised images [n, 3, H, W] as the rows that Qwen2VLImageProcessor makes of still images: [n * patches, 3 * FRAMES * PATCH ** 2]."""
    n, c, h, w = x.shape
    gh, gw = h // PATCH, w // PATCH
    x = x.unsqueeze(1).expand(n, FRAMES, c, h, w)
    x = x.reshape(n, FRAMES, c, gh // MERGE, MERGE, PATCH, gw // MERGE, MERGE, PATCH).permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return x.reshape(n * gh * gw, c * FRAMES * PATCH * PATCH), torch.tensor([[1, gh, gw]] * n)


class Said:
    """What a tower says of pages: [n, CELLS, 576] of the numbers of their words, [n, CELLS] with 0 for an empty cell."""
    BEFORE, WEIGHT = 3, 0.35
    def __init__(self, tok, table, device):
        one = lambda s: tok(s, add_special_tokens=False).input_ids[0]
        self.words = table[torch.tensor([one("\n")] + [one("." if w == "." else " " + w) for w in WORDS])].float().to(device)
        g = torch.Generator().manual_seed(11); h = self.words.shape[1]
        self.order = [torch.randperm(h, generator=g).to(device) for _ in range(self.BEFORE)]; self.sign = [(torch.randint(2, (h,), generator=g) * 2.0 - 1).to(device) for _ in range(self.BEFORE)]
    def __call__(self, y):
        e = self.words[y]; out = e.clone()
        for k in range(1, self.BEFORE + 1): out[:, k:] += self.WEIGHT * self.sign[k - 1] * e[:, :-k, self.order[k - 1]]
        return out


class Clock:
    """Minutes of work, over all runs; saves every few minutes."""
    def __init__(self, path, minutes): self.path, self.minutes, self.used, self.begin, self.saved = path, minutes, 0.0, time.time(), 0.0
    def tick(self): now = time.time(); self.used += (now - self.begin) / 60; self.begin = now; return self.used / self.minutes
    def ends(self): return self.used >= self.minutes or os.path.exists(os.path.join(os.path.dirname(self.path), "stop"))
    def save(self, state):
        if self.used - self.saved < 2 and not self.ends(): return
        torch.save({**state, "minutes": self.used}, self.path + ".new"); os.replace(self.path + ".new", self.path); self.saved = self.used


def batched_attention(self, hidden_states, cu_seqlens, rotary_pos_emb=None, position_embeddings=None, **_):
    """The tower's attention with its windows, which here have one size, as a batch; transformers computes one after another."""
    n = hidden_states.shape[0]; q, k, v = self.qkv(hidden_states).view(n, 3, self.num_heads, -1).unbind(1)
    q, k = qwen.apply_rotary_pos_emb_vision(q, k, *position_embeddings); fold = lambda x: x.view(len(cu_seqlens) - 1, -1, self.num_heads, x.shape[-1]).transpose(1, 2)
    return self.proj(F.scaled_dot_product_attention(fold(q), fold(k), fold(v)).transpose(1, 2).reshape(n, -1))


class Tower(torch.nn.Module):
    def __init__(self, c):
        super().__init__(); c._attn_implementation = "sdpa"; self.v = qwen.Qwen2_5_VisionTransformerPretrainedModel(c)
        for b in self.v.blocks: b.attn.forward = batched_attention.__get__(b.attn)
    def forward(self, x):
        """x: u8 pages [n, side, side, 3]; [n, CELLS, 576]."""
        dev = next(self.v.parameters()).device; x = ((x.to(dev).permute(0, 3, 1, 2).float() / 255) - MEAN.to(dev)) / STD.to(dev); rows, grid = patch_rows(x)
        with torch.autocast(dev.type, dtype=torch.bfloat16): o = self.v(rows, grid_thw=grid.to(dev))
        return (o.pooler_output if hasattr(o, "pooler_output") else o).float().view(len(x), CELLS, -1)


def base_model(a):
    """SmolLM2 with the shipped LoRA, its tokenizer."""
    lm = AutoModelForCausalLM.from_pretrained(a.base, dtype=torch.bfloat16); table = lm.get_input_embeddings().weight.data.clone(); merge_lora(lm, shipped_lora())
    return lm, AutoTokenizer.from_pretrained(a.base), table


def seed_of_worker(): w = torch.utils.data.get_worker_info(); return 1000003 * w.id if w else 0


def batches(data, a): return iter(torch.utils.data.DataLoader(data, batch_size=None, num_workers=a.workers, prefetch_factor=4))


def rate(a, step, frac, warm): return a.lr * min(1, (step + 1) / warm) * min(1, 1.4 * (1 - frac) + 0.02)


def train_vision(a):
    path = os.path.join(a.out, "vision.pt"); clock = Clock(path, a.minutes); lm, tok, table = base_model(a); said = Said(tok, table, a.device); var = said.words.var().item(); C = F.normalize(said.words, dim=-1)
    v = Tower(config(text_config(lm, lm.config.vocab_size)).vision_config).to(a.device); del lm; params = list(v.parameters()); opt = torch.optim.AdamW(params, lr=a.lr, betas=(0.9, 0.98), weight_decay=0.01)
    step = 0
    if os.path.exists(path): s = torch.load(path); v.v.load_state_dict(s["v"]); opt.load_state_dict(s["opt"]); step, clock.used = s["step"], s["minutes"]
    dl = batches(Pages(a.batch, 5 + step, basic=True), a); avg = None
    while not clock.ends():
        frac = clock.tick(); x, y = next(dl); y = y.to(a.device)
        for g in opt.param_groups: g["lr"] = rate(a, step, frac, 100)
        o = v(x); mse = (o - said(y)).square().mean() / var; z = F.normalize(o, dim=-1) @ C.T * 20; l = mse + F.cross_entropy(z.flatten(0, 1), y.flatten())
        l.backward(); torch.nn.utils.clip_grad_norm_(params, 1.0); opt.step(); opt.zero_grad(set_to_none=True); step += 1
        if step % 10 == 0: acc = (z.argmax(-1) == y).float().mean().item(); avg = acc if avg is None else 0.8 * avg + 0.2 * acc
        if step % 50 == 0: print(f"vision step {step} mse {mse.item():.4f} loss {l.item():.4f} right {acc:.4f} avg {avg:.4f} {clock.used:.1f}m", flush=True)
        clock.save({"v": v.v.state_dict(), "opt": opt.state_dict(), "step": step})


class ImageFormat(Format):
    """lora.py's conversations as Qwen2.5-VL's template writes them, with the position of every token and where each page begins."""
    def __init__(self, tok): super().__init__(tok); self.edge = self.blank  # vision_start and vision_end look like line ends
    def chat(self, pages, size, turns, system):
        ids, lab, pos, begins, at = [], [], [], [], 0
        def put(x, learn=False):
            nonlocal at
            ids.extend(x); lab.extend(x if learn else [-100] * len(x)); pos.extend([(at + i,) * 3 for i in range(len(x))]); at += len(x)
        if system: put(self.t(f"<|im_start|>system\n{system}<|im_end|>\n"))
        for i, (_, q, a) in enumerate(turns):
            put(self.t("<|im_start|>user\n"))
            for p in pages if i == 0 else ():
                put([self.edge]); begins.append(len(ids)); x = self.cells(p, size); ids.extend(x); lab.extend([-100] * len(x))
                pos.extend([(at, at + c // SIDE, at + c % SIDE) for c in range(len(x))]); at += max(-(-len(x) // SIDE), SIDE); put([self.edge])
            put(self.t(q + "<|im_end|>\n<|im_start|>assistant\n")); put(self.t(a + "<|im_end|>"), True); put(self.t("\n"))
        return ids, lab, pos, begins


class Chats(torch.utils.data.IterableDataset):
    """Batches of conversations about pages: ids, labels [n, T], positions [3, n, T], the numbers of the pages' words [p, CELLS], where each page begins in
    ids.flatten() [p], and the pages drawn, if they are wanted."""
    def __init__(self, tok, n_tokens, seed, drawn): self.fmt, self.n_tokens, self.seed, self.drawn, self.eos = ImageFormat(tok), n_tokens, seed, drawn, tok.eos_token_id
    def __iter__(self):
        seed = self.seed + seed_of_worker(); f, gen, printer = Facts(1017 + seed), random.Random(3 + seed), Printer(7 + seed, basic=True); number = {w: i + 1 for i, w in enumerate(WORDS)}
        while True:
            n_pages, T = gen.choice([(1, 432), (2, 704), (2, 704), (3, 960), (4, 1232)]); n = max(1, self.n_tokens // T)
            ids = torch.full((n, T), self.eos); lab = torch.full_like(ids, -100); pos = torch.zeros(3, n, T, dtype=torch.long); words, begins, drawn = [], [], []
            for i in range(n):
                taken = set(); pages = [f.page(taken, CELLS - gen.choice([0, 0, 0, 85])) for _ in range(n_pages)]
                x, y, p, at = self.fmt.chat(pages, CELLS, f.turns(pages, 8), gen.choice(SYSTEMS)); k = min(T, len(x))
                ids[i, :k], lab[i, :k], pos[:, i, :k] = torch.tensor(x[:k]), torch.tensor(y[:k]), torch.tensor(p[:k]).T; begins += [i * T + b for b in at]
                for page in pages:
                    w = [w for fact in page for w in fact[3]]; words.append([number[v] for v in w] + [0] * (CELLS - len(w)))
                    if self.drawn: drawn.append(torch.frombuffer(bytearray(printer.draw(w + [None] * (CELLS - len(w))).getchannel(0).tobytes()), dtype=torch.uint8).view(SIDE * 56, -1))
            yield ids, lab, pos, torch.tensor(words), torch.tensor(begins), torch.stack(drawn) if drawn else None


class Reader(torch.nn.Module):
    """The language model under M-RoPE with a LoRA to train, in all layers."""
    def __init__(self, lm, rank):
        super().__init__(); self.model = text_model(lm); self.head = lm.get_output_embeddings().weight.detach()
        for p in self.parameters(): p.requires_grad_(False)
        for layer in self.model.layers:
            for n, c in list(layer.self_attn.named_children()):
                if isinstance(c, torch.nn.Linear): setattr(layer.self_attn, n, Lora(c, rank))
    def own(self): return {n: p for n, p in self.named_parameters() if p.requires_grad}
    def forward(self, ids, lab, pos, pages, begins):
        """Loss and share of right tokens; pages: [p, CELLS, 576] embeddings that stand at `begins` of ids.flatten()."""
        x = self.model.embed_tokens(ids); flat = x.flatten(0, 1); at = (begins[:, None] + torch.arange(CELLS, device=begins.device)).flatten()
        flat = flat.index_copy(0, at, pages.flatten(0, 1).to(flat.dtype)); h = self.model(inputs_embeds=flat.view(x.shape), position_ids=pos, use_cache=False).last_hidden_state
        want = lab[:, 1:]; k = want >= 0; z = F.linear(h[:, :-1][k], self.head).float(); return F.cross_entropy(z, want[k]), (z.argmax(-1) == want[k]).float().mean()


def train_reader(a, joint):
    path = os.path.join(a.out, "joint.pt" if joint else "lora.pt"); clock = Clock(path, a.minutes); lm, tok, table = base_model(a); said = Said(tok, table, a.device); var = said.words.var().item()
    m = Reader(lm, a.rank).to(a.device); m.head = m.head.to(a.device); own = m.own(); params = list(own.values()); step, avg, state = 0, None, None
    if joint: tower = Tower(config(text_config(lm, lm.config.vocab_size)).vision_config).to(a.device); params += list(tower.parameters())
    opt = torch.optim.AdamW(params, lr=a.lr, betas=(0.9, 0.98), weight_decay=0.0)
    if os.path.exists(path): state = torch.load(path); step, clock.used = state["step"], state["minutes"]; opt.load_state_dict(state["opt"])
    elif joint: state = {"lora": torch.load(os.path.join(a.out, "lora.pt"))["lora"], "v": torch.load(os.path.join(a.out, "vision.pt"))["v"]}
    if state:
        for n, p in own.items(): p.data = state["lora"][n].to(a.device)
        if joint: tower.v.load_state_dict(state["v"])
    dl = batches(Chats(tok, a.tokens, step + 50 * joint, joint), a)
    while not clock.ends():
        frac = clock.tick(); ids, lab, pos, words, begins, drawn = (x if x is None else x.to(a.device) for x in next(dl)); want = said(words)
        for g in opt.param_groups: g["lr"] = rate(a, step, frac, 50)
        pages = tower(drawn[..., None].expand(-1, -1, -1, 3)) if joint else want; l, right = m(ids, lab, pos, pages, begins)
        (l + 0.2 * (pages - want).square().mean() / var if joint else l).backward(); torch.nn.utils.clip_grad_norm_(params, 1.0); opt.step(); opt.zero_grad(); step += 1
        if step % 10 == 0: avg = l.item() if avg is None else 0.8 * avg + 0.2 * l.item()
        if step % 50 == 0: print(f"{a.what} step {step} loss {avg:.4f} right {right:.4f} T {ids.shape[1]} {clock.used:.1f}m", flush=True)
        clock.save({"lora": {n: p.detach() for n, p in own.items()}, "opt": opt.state_dict(), "step": step, **({"v": tower.v.state_dict()} if joint else {})})


def write_parts(a):
    s = torch.load(os.path.join(a.out, "joint.pt"), map_location="cpu")
    parts = {"lora." + n: p for n, p in s["lora"].items()} | {"vision." + n: p for n, p in s["v"].items() if p.is_floating_point()}
    save_file({n: p.to(torch.bfloat16).contiguous() for n, p in parts.items()}, a.file)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("what", choices=["vision", "lora", "joint", "parts"]); ap.add_argument("out"); ap.add_argument("file", nargs="?"); ap.add_argument("--base", default="smollm2"); ap.add_argument("--minutes", type=float, default=30); ap.add_argument("--device", default="cpu")
    ap.add_argument("--lr", type=float, default=1e-3); ap.add_argument("--batch", type=int, default=4); ap.add_argument("--rank", type=int, default=32); ap.add_argument("--tokens", type=int, default=1600); ap.add_argument("--workers", type=int, default=1)
    a = ap.parse_args(); torch.manual_seed(0); os.makedirs(a.out, exist_ok=True)
    write_parts(a) if a.what == "parts" else train_vision(a) if a.what == "vision" else train_reader(a, a.what == "joint")


if __name__ == "__main__": main()
