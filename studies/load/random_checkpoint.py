#!/usr/bin/env python3
"""A Hugging Face checkpoint with random weights in the shape of a config of text models or of SmolVLM, so that a server of any size can be loaded:
   studies/load/random_checkpoint.py bench/shapes/1.1b.json OUT [--seed 1]          (numpy)
   studies/load/random_checkpoint.py bench/shapes/smolvlm-256m.json OUT --longest-edge 1536
A text model's tokens are those of peers' random_gguf.py, so that both count alike: <unk>, <s>, </s>, 256 bytes, and words t259, t260, ... The chat template is "role: content" in lines."""
import argparse, json, math, pathlib, shutil, struct
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"


def tensors(c):
    """{name: shape}"""
    if "vision_config" not in c: return text_tensors(c, "model.", "lm_head")
    v, text = c["vision_config"], c["text_config"]; hidden, ffn, patch = v["hidden_size"], v["intermediate_size"], v["patch_size"]
    linear = lambda name, out, n: {f"{name}.weight": (out, n), f"{name}.bias": (out,)}
    norm = lambda name: {f"{name}.weight": (hidden,), f"{name}.bias": (hidden,)}
    found = {"patch_embedding.weight": (hidden, v["num_channels"], patch, patch), "patch_embedding.bias": (hidden,), "position_embedding.weight": ((v["image_size"] // patch) ** 2, hidden)}
    found = {f"model.vision_model.embeddings.{name}": shape for name, shape in found.items()}
    for i in range(v["num_hidden_layers"]):
        at = f"model.vision_model.encoder.layers.{i}."
        for name in "qkv": found |= linear(f"{at}self_attn.{name}_proj", hidden, hidden)
        found |= linear(f"{at}self_attn.out_proj", hidden, hidden) | linear(f"{at}mlp.fc1", ffn, hidden) | linear(f"{at}mlp.fc2", hidden, ffn) | norm(f"{at}layer_norm1") | norm(f"{at}layer_norm2")
    found |= norm("model.vision_model.post_layernorm") | {"model.connector.modality_projection.proj.weight": (text["hidden_size"], hidden * c["scale_factor"] ** 2)}
    return found | text_tensors(text, "model.text_model.", "lm_head")


def text_tensors(c, prefix, head):
    hidden, ffn, kv_size, q_size = c["hidden_size"], c["intermediate_size"], c["num_key_value_heads"] * c["head_dim"], c["num_attention_heads"] * c["head_dim"]
    found = {f"{prefix}embed_tokens.weight": (c["vocab_size"], hidden)}
    for i in range(c["num_hidden_layers"]):
        layer = {"input_layernorm": (hidden,), "self_attn.q_proj": (q_size, hidden), "self_attn.k_proj": (kv_size, hidden), "self_attn.v_proj": (kv_size, hidden), "self_attn.o_proj": (hidden, q_size),
                 "post_attention_layernorm": (hidden,), "mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden), "mlp.down_proj": (hidden, ffn)}
        found |= {f"{prefix}layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return found | {f"{prefix}norm.weight": (hidden,)} | ({} if c.get("tie_word_embeddings") else {f"{head}.weight": (c["vocab_size"], hidden)})


def random_values(rng, name, shape):
    if name.endswith(".bias"): return np.zeros(shape)
    return np.ones(shape) if len(shape) == 1 else rng.standard_normal(shape, dtype=np.float32) / math.sqrt(math.prod(shape[1:]))


def bf16(values):
    """Rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32); return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_processor(c, a):
    """Tokenizer and template of the fixture with words up to the vocabulary's size; tiles of the tower's size, at most --longest-edge together."""
    like, tokens = ROOT / "tests/fixtures/models/smolvlm-images", c["vision_config"]["image_size"] // c["vision_config"]["patch_size"] // c["scale_factor"]
    for name in ("tokenizer_config.json", "chat_template.jinja"): shutil.copy(like / name, a.out)
    tokenizer = json.loads((like / "tokenizer.json").read_text()); vocab = tokenizer["model"]["vocab"]; used = {*vocab.values(), *(t["id"] for t in tokenizer["added_tokens"])}
    vocab |= {f"\u0120t{i}": i for i in range(c["text_config"]["vocab_size"]) if i not in used}
    (a.out / "tokenizer.json").write_text(json.dumps(tokenizer))
    processor = json.loads((like / "processor_config.json").read_text()); processor["image_seq_len"] = tokens ** 2
    processor["image_processor"] |= dict(max_image_size={"longest_edge": c["vision_config"]["image_size"]}, size={"longest_edge": a.longest_edge})
    (a.out / "processor_config.json").write_text(json.dumps(processor))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter); ap.add_argument("shape", type=pathlib.Path); ap.add_argument("out", type=pathlib.Path); ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--longest-edge", type=int, default=1536, help="of images, in pixels")
    a = ap.parse_args(); c = json.loads(a.shape.read_text()); a.out.mkdir(parents=True, exist_ok=True); rng = np.random.default_rng(a.seed)
    header, at = {}, 0
    for name, shape in tensors(c).items(): header[name] = dict(dtype="BF16", shape=shape, data_offsets=[at, at := at + 2 * math.prod(shape)])
    text = json.dumps(header).encode(); text += b" " * (-len(text) % 8)
    with open(a.out / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors(c).items(): file.write(bf16(random_values(rng, name, shape)).tobytes())
    (a.out / "config.json").write_text(json.dumps(c, indent=1))
    if "vision_config" in c: return write_processor(c, a)
    words = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]; words += [f"\u2581t{i}" for i in range(len(words), c["vocab_size"])]
    special = [dict(id=i, content=word, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True) for i, word in enumerate(words[:3])]
    decoder = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    tokenizer = dict(version="1.0", truncation=None, padding=None, added_tokens=special, normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}, pre_tokenizer=None, post_processor=None,
                     decoder=decoder, model=dict(type="BPE", dropout=None, unk_token="<unk>", continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=True, byte_fallback=True, vocab={w: i for i, w in enumerate(words)}, merges=[]))
    (a.out / "tokenizer.json").write_text(json.dumps(tokenizer))
    (a.out / "tokenizer_config.json").write_text(json.dumps(dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>", chat_template=TEMPLATE)))


if __name__ == "__main__": main()
