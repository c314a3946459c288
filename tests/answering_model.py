"""A checkpoint that gives one answer, whatever it is asked: a fixture model whose layers add nothing to the embedding of the last token, from which the output matrix makes
the next token of the answer. The answer is a list of different tokens; those in angle brackets are special, as in docling's and MinerU's vocabularies.

    tests/answering_model.py doctags|mineru|calls FOLDER"""
import json
import pathlib
import shutil
import struct
import sys

FIXTURES = pathlib.Path(__file__).resolve().parent / "fixtures/models"
DOCTAGS = ("<doctag>", "<section_header_level_1>", "<loc_40>", "<loc_30>", "<loc_200>", "<loc_44>", "Invoice KT4821", "</section_header_level_1>",
           "<otsl>", "<loc_41>", "<loc_60>", "<loc_400>", "<loc_120>", "<ched>", "Item", "<ecel>", "<nl>", "<rhed>", "Lamp", "<fcel>", "12", "</otsl>",
           "<text>", "<loc_42>", "<loc_130>", "<loc_300>", "<loc_140>", "Thank you.", "</text>", "</doctag>")
CALLS = ("<think>", "It is called.", "</think>", "\n\n", "<tool_call>", '{"name": "click", "arguments": {"x": 7}}', "</tool_call>", "<|vision_pad|>")
MINERU = ("<|box_start|>", "100 200 300 400", "<|box_end|>", "<|ref_start|>", "text", "<|ref_end|>", "<|rotate_up|>")
KINDS = {"doctags": ("idefics3-single", DOCTAGS), "mineru": ("qwen2-vl-flat", MINERU), "calls": ("qwen2-vl-flat", CALLS)}
ONE = b"\x80\x3f"  # as bf16


def is_special(token):
    return token.startswith("<")


def matrix(n_rows, n_cols, ones):
    """bf16, with 1 at ones[row]."""
    return b"".join(b"".join(ONE if col == ones[row] else b"\0\0" for col in range(n_cols)) for row in range(n_rows))


def read_tensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    return {name: (t["dtype"], t["shape"], data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]) for name, t in header.items() if name != "__metadata__"}


def write_tensors(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def make(kind, folder):
    """Writes the checkpoint of KINDS[kind] to a folder, with an image processor and a chat template. Returns the answer with its special tokens."""
    fixture, answer = FIXTURES / KINDS[kind][0], KINDS[kind][1]
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("chat_template.jinja", "config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json", "tokenizer.json", "tokenizer_config.json"):
        if (fixture / name).exists(): shutil.copy(fixture / name, folder)

    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    ids = {**tokenizer["model"]["vocab"], **{token["content"]: token["id"] for token in tokenizer["added_tokens"]}}
    for token in answer:
        ids.setdefault(token, max(ids.values()) + 1)
        tokenizer["added_tokens"] = [known for known in tokenizer["added_tokens"] if known["content"] != token]
        tokenizer["added_tokens"].append({"id": ids[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": is_special(token)})
    tokenizer["added_tokens"].sort(key=lambda token: token["id"])
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))

    config = json.loads((folder / "config.json").read_text())
    n = max(ids.values()) + 1
    for part in (config, config.get("text_config", {})):
        if "tie_word_embeddings" in part or part is config: part["tie_word_embeddings"] = False
        if "vocab_size" in part: part["vocab_size"] = n
    (folder / "config.json").write_text(json.dumps(config))

    tensors = read_tensors(fixture / "model.safetensors")
    hidden = tensors[next(name for name in tensors if name.endswith("embed_tokens.weight"))][1][1]
    assert len(answer) < hidden, "a token of the answer needs a dimension of its own"
    end = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    for name, (dtype, shape, data) in list(tensors.items()):
        if "vision" in name or "visual" in name: continue
        if name.endswith("embed_tokens.weight"):  # a token of the answer has its own dimension, all others share the first
            own = {ids[token]: i + 1 for i, token in enumerate(answer)}
            tensors[name] = dtype, [n, hidden], matrix(n, hidden, {row: own.get(row, 0) for row in range(n)})
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name] = dtype, shape, bytes(len(data))
        elif name.endswith("norm.weight"):
            tensors[name] = dtype, shape, ONE * shape[0]
    follows = {ids[token]: i for i, token in enumerate(answer)} | {end: len(answer)}  # by token, the dimension of the one before it
    tensors["lm_head.weight"] = "BF16", [n, hidden], matrix(n, hidden, {row: follows.get(row, -1) for row in range(n)})
    write_tensors(folder / "model.safetensors", tensors)
    return "".join(answer)


if __name__ == "__main__": print(make(*sys.argv[1:]))
