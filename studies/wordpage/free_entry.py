#!/usr/bin/env python3
"""What a plan could gain in which a row of a reused image enters at any layer, on WordPage's checkpoint (PyTorch, f32):

    make_eval.py DATA --samples 60 --pages 2 --kinds join,about --across --turns 2 --seed 8501
    make_eval.py OTHERS --samples 100 --pages 1 --seed 8502
    free_entry.py measure MODEL DATA OTHERS rows.jsonl
    free_entry.py table rows.jsonl

Pages have been seen as the set's condition says (reuse_accuracy.py); their K, V and the inputs of all layers are recorded. The right
answer is teacher-forced after the question, with everything computed and by each plan below; an image's rows are chosen alike for all
plans, by the largest attention that a token of the question gives them where all is loaded. Plans, with a budget of b row-layers per
image token and layer:
    flat       b n rows run through all layers
    falling    b n L / 19 rows run through layers 0 to 18, deeper layers use the loaded KV: the paper's plans fall with depth
    through    as many rows and layers, but they replace K and V from layer 15 on only; before that, they read the loaded KV
    recorded   b n L / 4 rows enter at layer 15 from the recorded input of that layer and leave after layer 18
    recorded+  b n L / 15 rows enter there and stay
With all rows computed through all layers, logits must equal everything computed: this is checked with the first question.
Layers 15 to 18 are the layers whose K and V matter most on this model (docs/studies/reuse.md)."""
import argparse, itertools, json, math, os, random
from collections import defaultdict
import torch
from reuse_accuracy import load_sets, records, system_of

FROM, TO = 15, 19
BUDGETS = (0.025, 0.05, 0.15)


class Prompt:
    """Embeddings [n, hidden] of a chat about images, and where these stand: [(begin, end)]."""
    def __init__(self, model, processor, system, images, question, answer=""):
        from PIL import Image
        content = [dict(type="image") for _ in images] + [dict(type="text", text=question)]
        text = processor.apply_chat_template([dict(role="system", content=system), dict(role="user", content=content)], add_generation_prompt=True)
        inputs = processor(text=text + answer, images=[Image.open(i) for i in images], return_tensors="pt")
        ids = inputs["input_ids"][0]; is_image = ids == model.config.image_token_id; at = is_image.nonzero()[:, 0].tolist()
        n = len(at) // len(images); self.images = [(at[i * n], at[i * n] + n) for i in range(len(images))]
        self.n_answer = len(processor.tokenizer(answer, add_special_tokens=False)["input_ids"]) if answer else 0
        self.ids, self.n = ids, len(ids)
        features = torch.cat(list(model.get_image_features(pixel_values=inputs["pixel_values"].to(model.dtype)).pooler_output))
        self.x = model.get_input_embeddings()(ids); self.x[is_image] = features.to(model.dtype).reshape(-1, self.x.shape[1])


class Text:
    """The text side, layer by layer, for rows of the caller's choice."""
    def __init__(self, model):
        self.model, self.text = model, model.model.language_model; self.layers = self.text.layers; c = self.text.config
        self.h, self.kv, self.d, self.scale = c.num_attention_heads, c.num_key_value_heads, c.head_dim, c.head_dim ** -0.5

    def rotate(self, x, positions):
        cos, sin = self.text.rotary_emb(x, positions[None]); cos, sin = cos[0][:, None], sin[0][:, None]; a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    def project(self, layer, x):
        """q, k, v [rows, heads, d] before rotation."""
        a, n = layer.self_attn, layer.input_layernorm(x)
        return a.q_proj(n).view(-1, self.h, self.d), a.k_proj(n).view(-1, self.kv, self.d), a.v_proj(n).view(-1, self.kv, self.d)

    def attend(self, layer, x, q, rows, k, v):
        """The rows' next hidden states; k [all, kv heads, d] rotated; and their attention [heads, rows, all]."""
        group = self.h // self.kv
        logits = torch.einsum("rhd,nhd->hrn", self.rotate(q, rows), k.repeat_interleave(group, 1)) * self.scale
        logits.masked_fill_(torch.arange(len(k))[None, None] > rows[None, :, None], -math.inf); p = logits.softmax(-1)
        x = x + layer.self_attn.o_proj(torch.einsum("hrn,nhd->rhd", p, v.repeat_interleave(group, 1)).reshape(len(rows), -1))
        return x + layer.mlp(layer.post_attention_layernorm(x)), p

    def logits(self, x): return self.model.lm_head(self.text.norm(x))

    def full(self, prompt):
        """Of all rows: logits [n, vocab], inputs of layers, keys before rotation and values of layers."""
        rows, x, inputs, ks, vs = torch.arange(prompt.n), prompt.x, [], [], []
        for layer in self.layers:
            inputs.append(x); q, k, v = self.project(layer, x); ks.append(k); vs.append(v)
            x, _ = self.attend(layer, x, q, rows, self.rotate(k, rows), v)
        return self.logits(x), inputs, ks, vs

    def reused(self, prompt, loaded, chosen, enter, replace_from, leave):
        """Logits of the text's rows, and the largest attention [n] of a question's token to each row. loaded: {inputs, k, v} per layer of all
        image rows (index in the prompt); `chosen` rows enter at layer `enter`, write their K and V from `replace_from` on, and leave at `leave`."""
        is_text = torch.ones(prompt.n, dtype=torch.bool)
        for begin, end in prompt.images: is_text[begin:end] = False
        text, state, most, every = is_text.nonzero()[:, 0], prompt.x.clone(), torch.zeros(prompt.n), torch.arange(prompt.n)
        question = (text >= prompt.images[-1][1]) & (text < prompt.n - prompt.n_answer)
        for i, layer in enumerate(self.layers):
            active = torch.cat((text, chosen)).sort().values if enter <= i < leave else text
            if i == enter: state[chosen] = loaded["inputs"][i][chosen]
            q, k_new, v_new = self.project(layer, state[active]); k, v = loaded["k"][i].clone(), loaded["v"][i].clone()
            writes = is_text[active] | torch.tensor(i >= replace_from); k[active[writes]] = k_new[writes]; v[active[writes]] = v_new[writes]
            out, p = self.attend(layer, state[active], q, active, self.rotate(k, every), v); state[active] = out
            if len(chosen) == 0: most = torch.maximum(most, p[:, question].amax((0, 1)))
        return self.logits(state[text]), most


def place(prompt, seen, n_layers):
    """The record of the prompt's images, as {inputs, k, v}: lists over layers of tensors with a row for every row of the prompt."""
    placed = {}
    for name in ("inputs", "k", "v"):
        placed[name] = []
        for i in range(n_layers):
            rows = torch.zeros(prompt.n, *seen[0][name][i].shape[1:])
            for (begin, end), one in zip(prompt.images, seen): rows[begin:end] = one[name][i]
            placed[name].append(rows)
    return placed


def plans(n, n_layers):
    """{(plan, budget): (rows, enter, replace_from, leave)}"""
    of = lambda b, layers: min(n, round(b * n * n_layers / layers)); found = {("loaded", 0.0): (0, 0, 0, 0)}
    for b in BUDGETS:
        found |= {("flat", b): (of(b, n_layers), 0, 0, n_layers), ("falling", b): (of(b, TO), 0, 0, TO), ("through", b): (of(b, TO), 0, FROM, TO),
                  ("recorded", b): (of(b, TO - FROM), FROM, FROM, TO), ("recorded+", b): (of(b, n_layers - FROM), FROM, FROM, n_layers)}
    return found


@torch.inference_mode()
def measure(a):
    from transformers import AutoProcessor, LlavaForConditionalGeneration
    torch.set_num_threads(a.threads)
    model, processor = LlavaForConditionalGeneration.from_pretrained(a.model, dtype=torch.float32), AutoProcessor.from_pretrained(a.model)
    text, others = Text(model), itertools.cycle([s["images"][0] for s in load_sets(a.others)]); n_layers = len(text.layers)
    done = {json.loads(line)["set"] for line in open(a.rows)} if os.path.exists(a.rows) else set(); checked = False
    with open(a.rows, "a") as out:
        for s in load_sets(a.data):
            seen, before = {}, list(records(s, others))  # also of sets that are done: the next set uses other pages
            if s["id"] in done: continue
            for system, images in before:
                one = Prompt(model, processor, system, images, "What is this?"); _, inputs, k, v = text.full(one)
                for (begin, end), image in zip(one.images, images):
                    if image in s["images"]: seen.setdefault(image, dict(inputs=[t[begin:end] for t in inputs], k=[t[begin:end] for t in k], v=[t[begin:end] for t in v]))
            for turn in s["turns"]:
                prompt = Prompt(model, processor, system_of(s), s["images"], turn["question"], turn["answer"])
                loaded = place(prompt, [seen[i] for i in s["images"]], n_layers); logits, *_ = text.full(prompt)
                at = slice(prompt.n - prompt.n_answer - 1, prompt.n - 1); whole = logits[at].log_softmax(-1)
                none, most = text.reused(prompt, loaded, torch.tensor([], dtype=torch.long), 0, 0, 0); image_rows = torch.cat([torch.arange(*i) for i in prompt.images])
                order = image_rows[most[image_rows].argsort(descending=True)]
                if not checked:
                    again = text.reused(prompt, loaded, image_rows, 0, 0, n_layers)[0]
                    difference = (again[-prompt.n_answer - 1 : -1] - logits[at]).abs().max() / logits[at].abs().max()
                    assert difference < 1e-4, f"everything computed differs by {difference}"; checked = True
                for (name, b), (n, enter, replace_from, leave) in plans(len(image_rows), n_layers).items():
                    got = none if n == 0 else text.reused(prompt, loaded, order[:n].sort().values, enter, replace_from, leave)[0]
                    got = got[-prompt.n_answer - 1 : -1].log_softmax(-1); kl = (whole.exp() * (whole - got)).sum(-1)
                    out.write(json.dumps(dict(set=s["id"], kind=turn["kind"], plan=name, budget=b, rows=n, kl=kl.mean().item(), same=bool((whole.argmax(-1) == got.argmax(-1)).all()))) + "\n")
                out.flush()


def table(a):
    by, rows = defaultdict(lambda: defaultdict(list)), [json.loads(line) for line in open(a.rows)]
    for r in rows: by[r["plan"], r["budget"]][r["set"]].append(r)
    rng = random.Random(1); print("| plan | budget | rows | KL to everything computed (95 %) | answers with the same likeliest tokens |\n|---|---:|---:|---:|---:|")
    for (plan, budget), sets in sorted(by.items(), key=lambda x: x[0][1]):
        groups = list(sets.values()); mean = lambda gs, key: sum(r[key] for g in gs for r in g) / sum(len(g) for g in gs)
        drawn = sorted(mean(rng.choices(groups, k=len(groups)), "kl") for _ in range(1000)); n = sum(len(g) for g in groups)
        print(f"| {plan} | {budget:.1%} | {groups[0][0]['rows']} | {mean(groups, 'kl'):.4f} ({drawn[25]:.4f} to {drawn[974]:.4f}) | {mean(groups, 'same'):.1%} of {n} |")


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter); sub = ap.add_subparsers(required=True)
    m = sub.add_parser("measure"); [m.add_argument(n) for n in ("model", "data", "others", "rows")]; m.add_argument("--threads", type=int, default=2); m.set_defaults(run=measure)
    t = sub.add_parser("table"); t.add_argument("rows"); t.set_defaults(run=table)
    a = ap.parse_args(); a.run(a)
