"""Answers the TinyDoc questions with the Hugging Face implementation: the reference for `make eval`.

  python eval_hf.py --model models/tinydoc --data tests/fixtures/tinydoc [--batch 16] [--threads 1]

Reads DATA/questions.jsonl (see make_pages.py), decodes greedily in f32 and in bf16, and writes
  DATA/hf_answers.jsonl   one {id, f32, bf16} a line: the answers, special tokens and outer white space dropped
  DATA/hf_accuracy.json   {versions, max_new_tokens, f32: {all, form, …}, bf16: {…}}: shares of exact answers
Only prompts of one length share a batch, so nothing is padded and a batch computes what single prompts would.
"""
import argparse
import collections
import json
from pathlib import Path

import torch
import transformers
from PIL import Image
from transformers import AutoImageProcessor, AutoProcessor, LlavaForConditionalGeneration


def load_inputs(processor, data, rows):
    """[(row, input_ids [n], pixel_values [pages, 3, h, w])] of the questions, through the chat template."""
    out = []
    for row in rows:
        content = [{"type": "image"} for _ in row["images"]] + [{"type": "text", "text": row["question"]}]
        text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        images = [Image.open(data / name).convert("RGB") for name in row["images"]]
        x = processor(text=text, images=images, return_tensors="pt", add_special_tokens=False)
        out.append((row, x["input_ids"][0], x["pixel_values"]))
    return out


@torch.inference_mode()
def answers(model, processor, inputs, batch, max_new_tokens):
    groups, found = collections.defaultdict(list), {}
    for x in inputs:
        groups[len(x[1])].append(x)
    for _, group in sorted(groups.items()):
        for start in range(0, len(group), batch):
            part = group[start:start + batch]
            ids = torch.stack([x[1] for x in part])
            pixels = torch.cat([x[2] for x in part]).to(model.dtype)
            out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=pixels,
                                 max_new_tokens=max_new_tokens, do_sample=False)
            for x, y in zip(part, out):
                found[x[0]["id"]] = processor.tokenizer.decode(y[ids.shape[1]:], skip_special_tokens=True).strip()
    return found


def accuracy(rows, found):
    right = collections.defaultdict(list)
    for row in rows:
        for name in ("all", row["kind"]):
            right[name].append(found[row["id"]] == row["answer"])
    return {name: round(sum(x) / len(x), 4) for name, x in right.items()}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", default="models/tinydoc")
    ap.add_argument("--data", type=Path, required=True)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--max-new-tokens", type=int, default=128)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    rows = [json.loads(line) for line in open(a.data / "questions.jsonl", encoding="utf-8")]
    processor = AutoProcessor.from_pretrained(a.model)
    processor.image_processor = AutoImageProcessor.from_pretrained(a.model, backend="pil")
    inputs = load_inputs(processor, a.data, rows)
    result = {"versions": {"torch": torch.__version__, "transformers": transformers.__version__},
              "n_questions": len(rows), "max_new_tokens": a.max_new_tokens}
    found = {}
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        model = LlavaForConditionalGeneration.from_pretrained(a.model, dtype=dtype).eval()
        found[name] = answers(model, processor, inputs, a.batch, a.max_new_tokens)
        result[name] = accuracy(rows, found[name])
        print(name, json.dumps(result[name]), flush=True)
    with open(a.data / "hf_answers.jsonl", "w", encoding="utf-8") as f:
        for row in rows:
            f.write(json.dumps({"id": row["id"], **{k: v[row["id"]] for k, v in found.items()}}) + "\n")
    with open(a.data / "hf_accuracy.json", "w", encoding="utf-8") as f:
        f.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
