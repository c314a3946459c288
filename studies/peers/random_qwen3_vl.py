#!/usr/bin/env python3
"""Two GGUF files with random weights in the shape of a Qwen3-VL config, so that llama.cpp can be timed with an image:
   studies/peers/random_qwen3_vl.py bench/shapes/qwen3-vl-2b.json TEXT.gguf MMPROJ.gguf          (pip install gguf numpy)
The language side has architecture qwen3vl, the tower projector qwen3vl_merger with its DeepStack mergers; names and types are as of llama.cpp's converter with --outtype bf16 (or f16,
--type f16), which keeps vectors, the patch embedding and the position table in f32. Its tokens: 256 bytes, words t259, t260, ..., and the special tokens of an image at the config's ids, so that a prompt's ASCII characters are a token each."""
import argparse, json, pathlib
import gguf
import numpy as np

TYPES = {"bf16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16), "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16)}


class Weights:
    """Tensors of one file; matrices in its type with rows of length about 1, vectors in f32."""
    def __init__(self, out, arch, kind, seed):
        self.type, file_type = TYPES[kind]; self.rng = np.random.default_rng(seed); self.file = gguf.GGUFWriter(out, arch, use_temp_file=True); self.file.add_file_type(file_type)

    def random(self, *shape): return self.rng.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(np.prod(shape[1:])))
    def matrix(self, name, rows, cols): self.file.add_tensor(f"{name}.weight", gguf.quants.quantize(self.random(rows, cols), self.type), raw_dtype=self.type)
    def f32(self, name, *shape): self.file.add_tensor(name, self.random(*shape))
    def ones(self, name, n): self.file.add_tensor(f"{name}.weight", np.ones(n, np.float32))
    def zeros(self, name, n): self.file.add_tensor(f"{name}.bias", np.zeros(n, np.float32))
    def linear(self, name, rows, cols): self.matrix(name, rows, cols); self.zeros(name, rows)
    def norm(self, name, n): self.ones(name, n); self.zeros(name, n)
    def write(self): self.file.write_header_to_file(); self.file.write_kv_data_to_file(); self.file.write_tensors_to_file(); self.file.close()


def add_tokens(w, c):
    t, kind = c["text_config"], gguf.TokenType
    words = [b"<unk>", b"<s>", b"</s>"] + [b"<0x%02X>" % i for i in range(256)]; kinds = [kind.UNKNOWN, kind.CONTROL, kind.CONTROL] + [kind.BYTE] * 256
    words += [f"\u2581t{i}".encode() for i in range(len(words), t["vocab_size"])]; kinds += [kind.NORMAL] * (t["vocab_size"] - len(kinds))
    special = {c["vision_start_token_id"]: b"<|vision_start|>", c["vision_end_token_id"]: b"<|vision_end|>", c["image_token_id"]: b"<|image_pad|>", t["eos_token_id"]: b"<|im_end|>"}
    for i, word in special.items(): words[i], kinds[i] = word, kind.CONTROL
    w.add_tokenizer_model("llama"); w.add_tokenizer_pre("default"); w.add_token_list(words); w.add_token_scores([-float(i) for i in range(len(words))]); w.add_token_types(kinds)
    w.add_bos_token_id(t["bos_token_id"]); w.add_eos_token_id(t["eos_token_id"]); w.add_unk_token_id(0); w.add_add_bos_token(False); w.add_add_space_prefix(False)


def write_text(c, out, kind, seed):
    t, w = c["text_config"], Weights(out, "qwen3vl", kind, seed); f, hidden, head = w.file, t["hidden_size"], t["head_dim"]
    f.add_context_length(t["max_position_embeddings"]); f.add_embedding_length(hidden); f.add_block_count(t["num_hidden_layers"]); f.add_feed_forward_length(t["intermediate_size"]); f.add_vocab_size(t["vocab_size"])
    f.add_head_count(t["num_attention_heads"]); f.add_head_count_kv(t["num_key_value_heads"]); f.add_key_length(head); f.add_value_length(head); f.add_layer_norm_rms_eps(t["rms_norm_eps"])
    f.add_rope_dimension_count(head); f.add_rope_freq_base(float(t["rope_theta"])); f.add_rope_dimension_sections([*t["rope_scaling"]["mrope_section"], 0]); f.add_num_deepstack_layers(len(c["vision_config"]["deepstack_visual_indexes"]))
    add_tokens(f, c)
    q, kv = t["num_attention_heads"] * head, t["num_key_value_heads"] * head
    w.matrix("token_embd", t["vocab_size"], hidden); w.ones("output_norm", hidden)
    if not c["tie_word_embeddings"]: w.matrix("output", t["vocab_size"], hidden)
    for i in range(t["num_hidden_layers"]):
        at = f"blk.{i}."
        for name, n in (("attn_norm", hidden), ("ffn_norm", hidden), ("attn_q_norm", head), ("attn_k_norm", head)): w.ones(at + name, n)
        for name, rows, cols in (("attn_q", q, hidden), ("attn_k", kv, hidden), ("attn_v", kv, hidden), ("attn_output", hidden, q)): w.matrix(at + name, rows, cols)
        for name in ("ffn_gate", "ffn_up"): w.matrix(at + name, t["intermediate_size"], hidden)
        w.matrix(at + "ffn_down", hidden, t["intermediate_size"])
    w.write()


def write_tower(c, out, kind, seed):
    v, w = c["vision_config"], Weights(out, "clip", kind, seed); f, hidden, merged, patch = w.file, v["hidden_size"], v["hidden_size"] * v["spatial_merge_size"] ** 2, v["patch_size"]
    f.add_clip_has_vision_encoder(True); f.add_clip_projector_type(gguf.VisionProjectorType.QWEN3VL); f.add_vision_use_gelu(True); f.add_vision_spatial_merge_size(v["spatial_merge_size"])
    f.add_vision_image_size(round(v["num_position_embeddings"] ** 0.5) * patch); f.add_vision_patch_size(patch); f.add_vision_image_mean([0.5] * 3); f.add_vision_image_std([0.5] * 3)
    f.add_vision_embedding_length(hidden); f.add_vision_feed_forward_length(v["intermediate_size"]); f.add_vision_block_count(v["depth"]); f.add_vision_head_count(v["num_heads"])
    f.add_vision_projection_dim(v["out_hidden_size"]); f.add_vision_attention_layernorm_eps(1e-6); f.add_vision_is_deepstack_layers([i in v["deepstack_visual_indexes"] for i in range(v["depth"])])
    for name in ("v.patch_embd.weight", "v.patch_embd.weight.1"): w.f32(name, hidden, v["in_channels"], patch, patch)  # a frame each
    w.zeros("v.patch_embd", hidden); w.f32("v.position_embd.weight", v["num_position_embeddings"], hidden)
    for i in range(v["depth"]):
        at = f"v.blk.{i}."
        w.norm(at + "ln1", hidden); w.linear(at + "attn_qkv", 3 * hidden, hidden); w.linear(at + "attn_out", hidden, hidden)
        w.norm(at + "ln2", hidden); w.linear(at + "ffn_up", v["intermediate_size"], hidden); w.linear(at + "ffn_down", hidden, v["intermediate_size"])
    for i in v["deepstack_visual_indexes"]:
        at = f"v.deepstack.{i}."
        w.norm(at + "norm", merged); w.linear(at + "fc1", merged, merged); w.linear(at + "fc2", v["out_hidden_size"], merged)
    w.norm("v.post_ln", hidden); w.linear("mm.0", merged, merged); w.linear("mm.2", v["out_hidden_size"], merged)
    w.write()


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter); ap.add_argument("shape", type=pathlib.Path); ap.add_argument("text"); ap.add_argument("mmproj"); ap.add_argument("--seed", type=int, default=1); ap.add_argument("--type", choices=TYPES, default="bf16")
    a = ap.parse_args(); config = json.loads(a.shape.read_text())
    write_text(config, a.text, a.type, a.seed); write_tower(config, a.mmproj, a.type, a.seed + 1)
