"""Train the small vision-language model that vlcache ships: a genuine Hugging Face LLaVA, tiny.

  python train.py --out models/tinydoc --minutes 150            # CPU, bf16
  python train.py --out models/tinydoc --device cuda --minutes 8 --batch 256 --preset base
Resumes from OUT/train_state.pt when present. Writes config, weights (bf16 safetensors), tokenizer, processor.
"""
import argparse, json, math, os, random, time
import torch
from torch.utils.data import IterableDataset, DataLoader
import numpy as np
from tinydoc import TinyDoc, KEYS, NAMES, CITIES, ITEMS, COLS, SHAPES, COLORS

PRESETS = {  # vision: hidden, layers, heads; text: hidden, layers, heads, kv heads, mlp
    "small": dict(size=224, v=(192, 5, 3, 768), t=(256, 8, 4, 2, 576)),
    "base":  dict(size=336, v=(320, 7, 5, 1280), t=(448, 10, 7, 1, 1216)),
}
IMAGE, PAD, BOS, EOS = "<image>", "<pad>", "<s>", "</s>"


def make_tokenizer(out):
    if os.path.exists(os.path.join(out, "tokenizer.json")):
        from transformers import AutoTokenizer
        return AutoTokenizer.from_pretrained(out)
    from tokenizers import Tokenizer, models, pre_tokenizers, decoders, trainers, Regex
    from transformers import PreTrainedTokenizerFast
    tok = Tokenizer(models.BPE(unk_token=None))
    # capitals, digits and signs are tokens of their own, as a page shows them; lower-case words are merged
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex("[^a-z]"), "isolated"),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    gen = TinyDoc(seed=123)
    def corpus():
        for _ in range(4000):
            s = gen.sample()
            yield "User: \n" + "".join(f"{q}\nAssistant: {a}\nUser: " for q, a in s.turns)
    tok.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=384, special_tokens=[PAD, BOS, EOS, IMAGE],
                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t = PreTrainedTokenizerFast(tokenizer_object=tok, pad_token=PAD, bos_token=BOS, eos_token=EOS,
                                additional_special_tokens=[IMAGE], model_max_length=4096)
    t.chat_template = ("{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}User: {% if m['content'] is string %}{{ m['content'] }}"
                       "{% else %}{% for c in m['content'] if c['type'] == 'image' %}<image>\n{% endfor %}{% for c in m['content'] if c['type'] == 'text' %}{{ c['text'] }}{% endfor %}{% endif %}{{ '\\n' }}"
                       "{% else %}Assistant: {% if m['content'] is string %}{{ m['content'] }}{% else %}{{ m['content'][0]['text'] }}{% endif %}{{ eos_token }}{% endif %}{% endfor %}"
                       "{% if add_generation_prompt %}Assistant:{% endif %}")
    t.save_pretrained(out)
    return t


def make_model(preset, tok):
    from transformers import LlavaConfig, LlavaForConditionalGeneration, CLIPVisionConfig, LlamaConfig
    p = PRESETS[preset]
    vh, vl, vn, vi = p["v"]; th, tl, tn, tk, ti = p["t"]
    v = CLIPVisionConfig(hidden_size=vh, num_hidden_layers=vl, num_attention_heads=vn, intermediate_size=vi,
                         image_size=p["size"], patch_size=14, projection_dim=vh)
    t = LlamaConfig(hidden_size=th, num_hidden_layers=tl, num_attention_heads=tn, num_key_value_heads=tk, intermediate_size=ti,
                    head_dim=64, vocab_size=len(tok), max_position_embeddings=4096, rope_theta=10000.0,
                    tie_word_embeddings=True, bos_token_id=tok.bos_token_id, eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id)
    c = LlavaConfig(vision_config=v, text_config=t, image_token_index=tok.convert_tokens_to_ids(IMAGE),
                    vision_feature_select_strategy="default", vision_feature_layer=-2, image_seq_length=(p["size"] // 14) ** 2,
                    tie_word_embeddings=True)
    return LlavaForConditionalGeneration._from_config(c, attn_implementation={"vision_config": "eager", "text_config": "sdpa"})


MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073]).view(3, 1, 1)
STD = torch.tensor([0.26862954, 0.26130258, 0.27577711]).view(3, 1, 1)


def to_pixels(img):
    x = torch.from_numpy(np.asarray(img, dtype=np.uint8).copy()).permute(2, 0, 1).float() / 255
    return (x - MEAN) / STD


ALPHABET = {c: i for i, c in enumerate(" ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:=.-/")}


def patch_labels(img):
    """[patches, 4] what a patch shows: its two characters on a page of text, the shape and color of its cell on a page of shapes; -100 elsewhere."""
    side = img.size[0] // 14
    if hasattr(img, "placed"):
        y = torch.full((side, side, 4), -100)
        y[..., 2], y[..., 3] = len(SHAPES), len(COLORS)
        k = side // 4
        for shape, color, cell in img.placed:
            r, c = cell // 4 * k, cell % 4 * k
            y[r:r + k, c:c + k, 2], y[r:r + k, c:c + k, 3] = shape, color
        return y.view(-1, 4)
    return torch.tensor([[ALPHABET[row[c]], ALPHABET[row[c + 1]], -100, -100] for row in img.grid for c in range(0, len(row), 2)])


class PatchHead(torch.nn.Module):
    """Training aid, not saved: names what each patch shows from the features that enter the projector."""
    def __init__(self, model, width):
        super().__init__()
        self.sizes = [len(ALPHABET), len(ALPHABET), len(SHAPES) + 1, len(COLORS) + 1]
        self.fc = torch.nn.Linear(width, sum(self.sizes))
        self.seen = None
        model.model.multi_modal_projector.register_forward_pre_hook(self._keep)

    def _keep(self, module, args):
        self.seen = args[0]

    def loss(self, target):
        """target [pages, patches, 4]"""
        y = self.fc(self.seen.reshape(-1, self.seen.shape[-1])).float().split(self.sizes, -1)
        t = target.reshape(-1, 4)
        total, right, known = 0.0, 0, 0
        for i, z in enumerate(y):
            if not bool((t[:, i] >= 0).any()): continue
            total = total + torch.nn.functional.cross_entropy(z, t[:, i], ignore_index=-100) / 2
            if i < 2:
                k = t[:, i] > 0
                right, known = right + (z.argmax(-1)[k] == t[k, i]).sum().item(), known + k.sum().item()
        self.acc = right / max(1, known)
        return total


class Glyphs(torch.nn.Module):
    """Stands for the vision side while the language model learns to look things up: an embedding of a patch's two characters and its place.
    The projector is then trained to say the same of real pages; this module is not saved."""
    def __init__(self, model, tok):
        super().__init__()
        n = model.config.text_config.hidden_size
        self.left, self.right = torch.nn.Linear(n, n, bias=False), torch.nn.Linear(n, n, bias=False)
        self.row, self.col = torch.nn.Embedding(64, n), torch.nn.Embedding(64, n)
        for e in (self.row, self.col): torch.nn.init.normal_(e.weight, std=0.02)
        self.register_buffer("ids", torch.tensor([tok.convert_tokens_to_ids(tok.tokenize(c)[0]) for c in ALPHABET]))
        self.table = [model.model.language_model.embed_tokens]       # in a list: shared, not owned

    def forward(self, chars, cols=16):
        """chars [patches, 2] of one page -> [patches, hidden]"""
        e = self.table[0](self.ids[chars.clamp(min=0)])
        i = torch.arange(chars.shape[-2], device=chars.device)
        return self.left(e[..., 0, :]) + self.right(e[..., 1, :]) + self.row(i // cols) + self.col(i % cols)


def encode(sample, tok, n_img, img_id):
    """ids, labels: loss only on the answers and their </s>."""
    ids, lab = [tok.bos_token_id], [-100]
    for i, (q, a) in enumerate(sample.turns):
        pre = "User: "
        u = tok(pre, add_special_tokens=False).input_ids
        if i == 0:
            for _ in sample.pages:
                u += [img_id] * n_img + tok("\n", add_special_tokens=False).input_ids
        u += tok(q + "\nAssistant:", add_special_tokens=False).input_ids
        t = tok(" " + a, add_special_tokens=False).input_ids + [tok.eos_token_id]
        ids += u + t
        lab += [-100] * len(u) + t
    return ids, lab


def pad(items, T, pad_id):
    """[(ids, labels, …)] -> ids, labels [n, T]; longer ones are cut, the last label never wraps round."""
    ids = torch.full((len(items), T), pad_id); lab = torch.full((len(items), T), -100)
    for i, x in enumerate(items):
        ids[i, :len(x[0])] = torch.tensor(x[0][:T]); lab[i, :len(x[1])] = torch.tensor(x[1][:T])
    lab[:, 0] = -100
    return ids, lab


MIX = dict(page=12, form=14, table=10, line=26, shapes=20, multi=18)      # the hard kinds more often


class Stream(IterableDataset):
    def __init__(self, tok, size, n_img, batch, seed, pool=8, easy=0, mix=MIX):
        self.a = (tok, size, n_img, batch, seed, pool, easy, mix)

    def __iter__(self):
        tok, size, n_img, batch, seed, pool, easy, all_kinds = self.a
        drawn, pending, ready = 0, {}, []
        info = torch.utils.data.get_worker_info()
        gen = TinyDoc(size=size, seed=seed * 1000 + (info.id if info else 0))
        img_id = tok.convert_tokens_to_ids(IMAGE)
        while True:
            items = []
            drawn += 1
            for _ in range(batch * pool):
                # several pages only once one page can be read
                kinds, mix = (["page", "form", "table", "line", "shapes"], [4, 4, 4, 4, 4]) if drawn <= easy else (list(all_kinds), list(all_kinds.values()))
                s = gen.sample(gen.r.choices(kinds, mix)[0])
                ids, lab = encode(s, tok, n_img, img_id)
                items.append((len(ids), ids, lab, s.pages))
            # a batch holds samples of as many pages: few distinct shapes, so kernels are built once for each
            for n in {len(x[3]) for x in items}:
                mine = [x for x in items if len(x[3]) == n]
                T = n * (n_img + 1) + {1: 223, 2: 158, 3: 157, 4: 156}[n]
                size_ = max(1, batch * (n_img + 100) // T)
                pending[n] = pending.get(n, []) + mine
                while len(pending[n]) >= size_:
                    g, pending[n] = pending[n][:size_], pending[n][size_:]
                    ready.append((T, g))
            gen.r.shuffle(ready)
            while len(ready) > 4:
                T, g = ready.pop()
                ids, lab = pad([(x[1], x[2]) for x in g], T, tok.pad_token_id)
                px = torch.stack([to_pixels(p) for x in g for p in x[3]])
                yield ids, lab, None, px, torch.stack([patch_labels(p) for x in g for p in x[3]])


@torch.no_grad()
def evaluate(model, tok, size, n_img, device, n=60, seed=777, kinds=("form", "table", "line", "shapes", "multi")):
    model.eval()
    gen = TinyDoc(size=size, seed=seed)
    img_id = tok.convert_tokens_to_ids(IMAGE)
    res = {}
    for k in kinds:
        ok = 0
        for _ in range(n):
            s = gen.sample(k, max_turns=1)
            s.turns = s.turns[:1]
            q, a = s.turns[0]
            s2 = type(s)(s.pages, [(q, "")], s.kind)
            ids, _ = encode(s2, tok, n_img, img_id)
            drop = len(tok(" ", add_special_tokens=False).input_ids) + 1
            ids = ids[:-drop]
            ids = torch.tensor([ids], device=device)
            px = torch.stack([to_pixels(p) for p in s.pages]).to(device)
            with torch.autocast(device.split(":")[0], dtype=torch.bfloat16):
                out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=px, max_new_tokens=120, do_sample=False)
            txt = tok.decode(out[0, ids.shape[1]:], skip_special_tokens=True).strip()
            ok += txt == a
        res[k] = round(ok / n, 3)
    model.train()
    return res


def save(model, tok, out, size):
    from transformers import CLIPImageProcessor
    import copy
    m = copy.deepcopy(model).to("cpu", dtype=torch.bfloat16)
    m.config.vision_config._attn_implementation = "sdpa"
    m.save_pretrained(out)
    tok.save_pretrained(out)
    CLIPImageProcessor(size={"shortest_edge": size}, crop_size={"height": size, "width": size}).save_pretrained(out)
    try:
        from transformers import LlavaProcessor
        LlavaProcessor(image_processor=CLIPImageProcessor(size={"shortest_edge": size}, crop_size={"height": size, "width": size}),
                       tokenizer=tok, patch_size=14, vision_feature_select_strategy="default", image_token=IMAGE,
                       num_additional_image_tokens=1, chat_template=tok.chat_template).save_pretrained(out)
    except Exception as e:
        print("processor not saved:", e)


def look_up(a, model, glyphs, tok):
    """The language model alone, on pages given as glyphs, short pages first."""
    opt = Optimizer(model.model.language_model, glyphs, a.lr)
    gen = TinyDoc(seed=a.seed + 4242, render=False)
    img_id, t0, step, avg = tok.convert_tokens_to_ids(IMAGE), time.time(), 0, None
    while (frac := (time.time() - t0) / 60 / a.text_minutes) < 1:
        gen.rows = gen.r.choice([4, 5, 6] if frac < 0.4 else [6, 8, 10] if frac < 0.7 else [8, 12, 16])
        T = 16 * gen.rows + 208                      # few distinct shapes: kernels are built once for each
        items = []
        for _ in range(a.batch * 330 // T):
            x = gen.sample(gen.r.choices(["form", "table", "line", "page"], [4, 2, 2, 2])[0])
            items.append((*encode(x, tok, 16 * gen.rows, img_id), patch_labels(x.pages[0])))
        ids, lab = pad(items, T, tok.pad_token_id)
        opt.set_lr(a.lr * min(1, (step + 1) / 200) * (1 - 0.5 * frac))
        with torch.autocast(a.device.split(":")[0], dtype=torch.bfloat16):
            e = model.model.language_model.embed_tokens(ids)
            e = e.masked_scatter((ids == img_id).unsqueeze(-1), glyphs(torch.stack([x[2] for x in items])).to(e.dtype))
            h = model.model.language_model(inputs_embeds=e, use_cache=False).last_hidden_state
            y = torch.roll(lab, -1, 1).reshape(-1); k = y >= 0
            z = model.lm_head(h).float().view(-1, len(tok))
            l = torch.nn.functional.cross_entropy(z, y)
        l.backward(); torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step(); opt.zero_grad()
        avg = l.item() if avg is None else 0.98 * avg + 0.02 * l.item(); step += 1
        if step % 50 == 0: print(f"look up {step} loss {avg:.4f} right {(z.argmax(-1)[k] == y[k]).float().mean():.3f} rows {gen.rows} {(time.time() - t0) / 60:.1f}m", flush=True)


class Optimizer:
    """Muon for the matrices inside the layers, AdamW for the rest; one learning rate for both."""
    def __init__(self, model, head, lr):
        named = list(model.named_parameters()) + list(head.named_parameters())
        hidden = [p for n, p in named if p.dim() == 2 and "layers." in n]
        ids = {id(p) for p in hidden}
        rest = [p for n, p in named if id(p) not in ids]
        self.all = [torch.optim.Muon(hidden, lr=lr, weight_decay=0.05, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
                    torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.98), weight_decay=0.01)]

    def set_lr(self, lr):
        for o in self.all:
            for g in o.param_groups: g["lr"] = lr

    def step(self):
        for o in self.all: o.step()

    def zero_grad(self, set_to_none=True):
        for o in self.all: o.zero_grad(set_to_none=set_to_none)

    def state_dict(self): return [o.state_dict() for o in self.all]

    def load_state_dict(self, z):
        for o, x in zip(self.all, z): o.load_state_dict(x)


def see(a, model, head, size, glyphs=None):
    """The vision tower alone, a few minutes: dense supervision teaches reading far faster than answers do."""
    opt = Optimizer(torch.nn.ModuleList([model.model.vision_tower, model.model.multi_modal_projector]), head, a.lr)
    gen = TinyDoc(size=size, seed=a.seed + 31337)
    t0, step = time.time(), 0
    while (frac := (time.time() - t0) / 60 / a.aux_minutes) < 1:
        pages = [p for _ in range(40) for p in gen.sample(gen.r.choice(["form", "table"])).pages]
        px = torch.stack([to_pixels(p) for p in pages]).to(a.device)
        opt.set_lr(a.lr * min(1, (step + 1) / 100) * (1 - 0.8 * frac))
        with torch.autocast(a.device.split(":")[0], dtype=torch.bfloat16):
            head.seen = model.model.vision_tower(px, output_hidden_states=True).hidden_states[-2][:, 1:]
            chars, seen = torch.stack([patch_labels(p) for p in pages]).to(a.device), head.seen
            l = head.loss(chars)
            if glyphs is not None:
                with torch.no_grad(): want = glyphs(chars).float()
                same = (model.model.multi_modal_projector(seen).float() - want).square().mean() / want.var()
                l = l + same
        l.backward(); opt.step(); opt.zero_grad(set_to_none=True)
        step += 1
        if step % 25 == 0: print(f"see {step} loss {l.item():.4f} chars {head.acc:.4f} unlike {same.item() if glyphs is not None else 0:.4f} {(time.time() - t0) / 60:.1f}m", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True); ap.add_argument("--device", default="cpu"); ap.add_argument("--minutes", type=float, default=150)
    ap.add_argument("--batch", type=int, default=32); ap.add_argument("--lr", type=float, default=1e-3); ap.add_argument("--preset", default="small")
    ap.add_argument("--total_steps", type=int, default=0, help="stop after so many steps; 0 = by time"); ap.add_argument("--workers", type=int, default=1)
    ap.add_argument("--text_minutes", type=float, default=0, help="before anything else: the language model alone learns to look things up in pages of glyphs")
    ap.add_argument("--aux_minutes", type=float, default=8, help="first minutes: the vision tower alone learns to name the characters")
    ap.add_argument("--shape_weight", type=float, default=1, help="of answers about shapes, which are a word each, beside answers that read whole lines")
    ap.add_argument("--easy", type=int, default=150, help="first pools of batches hold single pages only")
    ap.add_argument("--mix", default="", help="kinds of pages and how often each is drawn, as in shapes=5,form=1; default: " + ",".join(f"{k}={v}" for k, v in MIX.items()))
    ap.add_argument("--aux", type=float, default=0.3, help="weight of that loss afterwards")
    ap.add_argument("--eval_every", type=int, default=1000); ap.add_argument("--seed", type=int, default=0); ap.add_argument("--final_eval", type=int, default=100)
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    torch.manual_seed(a.seed)
    tok = make_tokenizer(a.out)
    size = PRESETS[a.preset]["size"]; n_img = (size // 14) ** 2
    model = make_model(a.preset, tok).to(a.device)
    print("params", sum(p.numel() for p in model.parameters()) / 1e6, "M", flush=True)
    head = PatchHead(model, PRESETS[a.preset]["v"][0]).to(a.device)
    if not os.path.exists(os.path.join(a.out, "train_state.pt")):
        glyphs = Glyphs(model, tok).to(a.device)
        if a.text_minutes: look_up(a, model, glyphs, tok)
        if a.aux_minutes: see(a, model, head, size, glyphs if a.text_minutes else None)
    params = list(model.parameters()) + list(head.parameters())
    decay = [p for p in params if p.dim() >= 2]; nod = [p for p in params if p.dim() < 2]
    opt = Optimizer(model, head, a.lr)
    step, spent = 0, 0.0
    st = os.path.join(a.out, "train_state.pt")
    if os.path.exists(st):
        z = torch.load(st, map_location=a.device); model.load_state_dict(z["m"]); opt.load_state_dict(z["o"]) if "o" in z else None; step, spent = z["step"], z["spent"]
        print("resumed at", step, flush=True)
    mix = {k: float(v) for k, v in (x.split("=") for x in a.mix.split(","))} if a.mix else MIX
    dl = DataLoader(Stream(tok, size, n_img, a.batch, a.seed * 77 + step + 1, easy=a.easy, mix=mix), batch_size=None, num_workers=a.workers, prefetch_factor=4 if a.workers else None)
    t0 = time.time(); tl = t0; ntok = 0; loss_avg = None; total = a.total_steps
    start_step = step
    for ids, lab, _, px, chars in dl:
        frac = min(1, (spent + time.time() - t0) / 60 / a.minutes)      # of the whole plan, resumed runs included
        lr = a.lr * min(1, (step + 1) / 200) * min(1, 0.03 + 1.6 * (1 - frac))   # flat, then linear to nearly zero
        opt.set_lr(lr)
        ids, lab, px = ids.to(a.device), lab.to(a.device), px.to(a.device)
        with torch.autocast(a.device.split(":")[0], dtype=torch.bfloat16):
            # right padding under a causal mask needs no attention mask
            h = model.model(input_ids=ids, pixel_values=px, use_cache=False).last_hidden_state
            y = torch.roll(lab, -1, 1)
            ce = torch.nn.functional.cross_entropy(model.lm_head(h).float().view(-1, len(tok)), y.reshape(-1), reduction="none").view(y.shape)
            of_shapes = (chars.view(len(ids), -1, 4)[..., 2] >= 0).any(1)
            weight = torch.where(of_shapes, a.shape_weight, 1.0)[:, None].to(a.device) * (y >= 0)
            ce = (ce * weight).sum() / weight.sum()
            aux = head.loss(chars.to(a.device)) if a.aux else 0.0
        loss = ce + a.aux * aux
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step(); opt.zero_grad(set_to_none=True)
        l = ce.item(); loss_avg = l if loss_avg is None else 0.98 * loss_avg + 0.02 * l
        step += 1; ntok += ids.numel()
        if step % 50 == 0:
            dt = time.time() - tl; tl = time.time()
            print(f"step {step} loss {loss_avg:.4f} chars {head.acc if a.aux else 0:.3f} lr {lr:.2e} tok/s {ntok / dt:.0f} elapsed {(time.time() - t0) / 60:.1f}m", flush=True); ntok = 0
        done = frac >= 1 or (total and step >= total) or os.path.exists(os.path.join(a.out, "stop"))
        if step % a.eval_every == 0 or done:
            head.seen = None                              # part of a graph, which a copy of the model must not follow
            torch.save({"m": model.state_dict(), "o": opt.state_dict(), "step": step, "spent": spent + time.time() - t0}, st)
            save(model, tok, a.out, size)
            print("eval", step, json.dumps(evaluate(model, tok, size, n_img, a.device, n=16 if not done else a.final_eval)), flush=True)
        if done: break


if __name__ == "__main__":
    main()
