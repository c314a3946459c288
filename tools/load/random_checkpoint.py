#!/usr/bin/env python3
"""A Hugging Face checkpoint with random weights in the shape of a config of text models, so that a server of any size can be loaded:
   tools/load/random_checkpoint.py bench/shapes/1.1b.json OUT [--seed 1]          (numpy)
Its tokens are those of peers' random_gguf.py, so that both count alike: <unk>, <s>, </s>, 256 bytes, and words t259, t260, ... The chat template is "role: content" in lines."""
import argparse, json, math, pathlib, struct
import numpy as np

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"


def tensors(c):
    """{name: shape}"""
    hidden, ffn, kv_size, q_size = c["hidden_size"], c["intermediate_size"], c["num_key_value_heads"] * c["head_dim"], c["num_attention_heads"] * c["head_dim"]
    found = {"model.embed_tokens.weight": (c["vocab_size"], hidden)}
    for i in range(c["num_hidden_layers"]):
        layer = {"input_layernorm": (hidden,), "self_attn.q_proj": (q_size, hidden), "self_attn.k_proj": (kv_size, hidden), "self_attn.v_proj": (kv_size, hidden), "self_attn.o_proj": (hidden, q_size),
                 "post_attention_layernorm": (hidden,), "mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden), "mlp.down_proj": (hidden, ffn)}
        found |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return found | {"model.norm.weight": (hidden,)} | ({} if c.get("tie_word_embeddings") else {"lm_head.weight": (c["vocab_size"], hidden)})


def bf16(values):
    """Rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32); return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter); ap.add_argument("shape", type=pathlib.Path); ap.add_argument("out", type=pathlib.Path); ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args(); c = json.loads(a.shape.read_text()); a.out.mkdir(parents=True, exist_ok=True); rng = np.random.default_rng(a.seed)
    header, at = {}, 0
    for name, shape in tensors(c).items(): header[name] = dict(dtype="BF16", shape=shape, data_offsets=[at, at := at + 2 * math.prod(shape)])
    text = json.dumps(header).encode(); text += b" " * (-len(text) % 8)
    with open(a.out / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for shape in tensors(c).values(): file.write(bf16(np.ones(shape) if len(shape) == 1 else rng.standard_normal(shape, dtype=np.float32) / math.sqrt(shape[1])).tobytes())
    (a.out / "config.json").write_text(json.dumps(c, indent=1))
    words = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]; words += [f"\u2581t{i}" for i in range(len(words), c["vocab_size"])]
    special = [dict(id=i, content=word, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True) for i, word in enumerate(words[:3])]
    decoder = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    tokenizer = dict(version="1.0", truncation=None, padding=None, added_tokens=special, normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}, pre_tokenizer=None, post_processor=None,
                     decoder=decoder, model=dict(type="BPE", dropout=None, unk_token="<unk>", continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=True, byte_fallback=True, vocab={w: i for i, w in enumerate(words)}, merges=[]))
    (a.out / "tokenizer.json").write_text(json.dumps(tokenizer))
    (a.out / "tokenizer_config.json").write_text(json.dumps(dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>", chat_template=TEMPLATE)))


if __name__ == "__main__": main()
