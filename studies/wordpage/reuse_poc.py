#!/usr/bin/env python3
"""What VLCache's published proof of concept computes (github.com/Odysseusq/VLCache, 59b871d), on WordPage's checkpoint, for comparison with `vlcache run --reuse`:

    reuse_poc.py MODEL DATA answers.jsonl --ratios 0.01,0.025,0.05,0.1

DATA: sets of one page (make_eval.py --pages 1); answers.jsonl: as of `reuse_accuracy.py ask`, which it joins; `reuse_accuracy.py table` prints both. Written from what that code does, none of it is here:
  - an image's K and V are copied from the prompt in which it was computed, K as rotated there, wherever the image stands now;
  - positions are 1-D: a token's index;
  - text before the image and its first ceil(r n) tokens are computed, r the same in all layers, then the text after it; r = 0 means no reuse;
  - one image a request.
Its sampler draws (temperature 0.6); here the likeliest token is taken, as in what it is compared with. `transformers` is the same model with everything computed."""
import argparse, json, math
import torch
from PIL import Image
from transformers import AutoProcessor, DynamicCache, LlavaForConditionalGeneration
from reuse_accuracy import load_answers, load_sets, records, system_of


class Prompt:
    """Embeddings [1, n, hidden] of a prompt about one image, which stands at [begin, end)."""
    def __init__(self, model, processor, system, image, question):
        messages = [dict(role="system", content=system), dict(role="user", content=[dict(type="image"), dict(type="text", text=question)])]
        inputs = processor(text=processor.apply_chat_template(messages, add_generation_prompt=True), images=Image.open(image), return_tensors="pt")
        ids = inputs["input_ids"]; is_image = ids[0] == model.config.image_token_id; at = is_image.nonzero()
        self.begin, self.end, self.n = int(at[0]), int(at[-1]) + 1, ids.shape[1]
        assert self.end - self.begin == int(is_image.sum()), "the image's tokens stand together"
        features = model.get_image_features(pixel_values=inputs["pixel_values"].to(model.dtype)).pooler_output[0]
        self.embeddings = model.get_input_embeddings()(ids); self.embeddings[0, is_image] = features.to(model.dtype)


def forward(model, prompt, begin, end, cache):
    """Computes the prompt's tokens [begin, end) after what the cache holds; logits [vocab] of the last."""
    positions = torch.arange(begin, end)[None]
    hidden = model.model.language_model(inputs_embeds=prompt.embeddings[:, begin:end], position_ids=positions, past_key_values=cache, use_cache=True).last_hidden_state
    return model.lm_head(hidden[0, -1])


def full(model, prompt):
    cache = DynamicCache(); return forward(model, prompt, 0, prompt.n, cache), cache


def reused(model, prompt, seen, seen_cache, ratio):
    """As `full`, with the image's K and V from `seen`, another prompt about it, except for its first tokens."""
    n = seen.end - seen.begin; assert n == prompt.end - prompt.begin
    computed = math.ceil(ratio * n); cache = DynamicCache()
    logits = forward(model, prompt, 0, prompt.begin + computed, cache)
    for i, layer in enumerate(seen_cache.layers if computed < n else []):
        cache.update(layer.keys[:, :, seen.begin + computed : seen.end], layer.values[:, :, seen.begin + computed : seen.end], i)
    return (forward(model, prompt, prompt.end, prompt.n, cache), cache, computed)


def join(caches):
    """Caches of one length as a batch."""
    cache = DynamicCache()
    for i in range(len(caches[0].layers)): cache.update(torch.cat([c.layers[i].keys for c in caches]), torch.cat([c.layers[i].values for c in caches]), i)
    return cache


def decode(model, logits, cache, n_prompt, most=80):
    """Greedy answers, [n_sequences] of token ids without the end; logits [n_sequences, vocab]."""
    end = model.generation_config.eos_token_id; ends = set(end if isinstance(end, list) else [end])
    token, answers, done = logits.argmax(-1), [[] for _ in logits], [False] * len(logits)
    for i in range(most):
        for j, t in enumerate(token.tolist()):
            done[j] = done[j] or t in ends
            if not done[j]: answers[j].append(t)
        if all(done): break
        positions = torch.full((len(logits), 1), n_prompt + i)
        hidden = model.model.language_model(input_ids=token[:, None], position_ids=positions, past_key_values=cache, use_cache=True).last_hidden_state
        token = model.lm_head(hidden[:, -1]).argmax(-1)
    return answers


@torch.inference_mode()
def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter); ap.add_argument("model"); ap.add_argument("data"); ap.add_argument("answers")
    ap.add_argument("--ratios", default="0.01,0.025,0.05,0.1"); ap.add_argument("--first", type=int, default=0); ap.add_argument("--sets", type=int, default=10**9); ap.add_argument("--threads", type=int, default=2)
    a = ap.parse_args(); torch.set_num_threads(a.threads); ratios = [float(r) for r in a.ratios.split(",")]
    model, processor = LlavaForConditionalGeneration.from_pretrained(a.model, dtype=torch.bfloat16), AutoProcessor.from_pretrained(a.model)
    known, names, checked = load_answers(a.answers), ["transformers"] + [f"poc:r={r:g}" for r in ratios], False
    with open(a.answers, "a") as out:
        for s in load_sets(a.data)[a.first:][: a.sets]:
            if all((turn, name) in known[s["id"]] for turn in range(len(s["turns"])) for name in names): continue
            (system, [image]), = records(s, iter(()))
            seen = Prompt(model, processor, system, image, "What is this?"); _, seen_cache = full(model, seen)
            for turn, asked in enumerate(s["turns"]):
                prompt = Prompt(model, processor, system_of(s), image, asked["question"])
                results = [(*full(model, prompt), prompt.end - prompt.begin)] + [reused(model, prompt, seen, seen_cache, r) for r in ratios]
                if not checked:  # with every token computed nothing is left of the copies
                    difference = (reused(model, prompt, seen, seen_cache, 1)[0] - results[0][0]).abs().max() / results[0][0].abs().max()
                    assert difference < 0.03, f"r = 1 differs from full by {difference}"; checked = True
                answers = decode(model, torch.stack([logits for logits, _, _ in results]), join([cache for _, cache, _ in results]), prompt.n)
                for name, (_, _, computed), ids in zip(names, results, answers):
                    images = [["computed" if name == "transformers" else "ram", prompt.end - prompt.begin, computed]]
                    out.write(json.dumps(dict(set=s["id"], turn=turn, chooser=name, text=processor.tokenizer.decode(ids, skip_special_tokens=True).strip(), images=images)) + "\n"); out.flush()


if __name__ == "__main__": main()
