#!/usr/bin/env python3
"""An agent that sends a screenshot a step, with all that was before:

    tools/load/agent_loop.py -m CHECKPOINT [--steps 50] [--dtype f32] [--check 5] build/release/vlcache [FLAG...]

Every step is a user's turn with one new picture of 1280 x 800 and some text, and a short answer. Prints for each step the tokens of its prompt and how many
were found, the client's time to the first token, and what the server says of encoder and prefill. --check N: every Nth step is asked again, of a server that
keeps nothing, and must have the same answer (meant for f32). A checkpoint: random_checkpoint.py bench/shapes/smolvlm-256m.json."""
import argparse
import base64
import contextlib
import json
import pathlib
import random
import struct
import sys
import time
import zlib

from soak import Server

WIDTH, HEIGHT, BLOCK = 1280, 800, 16


def screenshot(seed):
    """A PNG of coloured blocks."""
    r = random.Random(seed)
    rows = b""
    for _ in range(HEIGHT // BLOCK):
        row = b"\0" + b"".join(r.randbytes(3) * BLOCK for _ in range(WIDTH // BLOCK))
        rows += row * BLOCK
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def text(value):
    return {"type": "text", "text": value}


def turn(step, seed):
    r = random.Random(f"{seed} {step}")
    words = " ".join(r.choice(["button", "field", "menu", "row", "page", "open", "done"]) for _ in range(12))
    url = "data:image/png;base64," + base64.b64encode(screenshot(f"{seed} {step}")).decode()
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, text(f"Step {step}: {words}. What next?")]}


def ask(server, messages, max_tokens):
    """(seconds to the first token, text, usage, what the server says of it)"""
    body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    data = json.dumps(body)
    with contextlib.closing(server.connect()) as c:
        begin, first, answer = time.monotonic(), None, ""
        c.request("POST", "/v1/chat/completions", data, {"content-type": "application/json"})
        reply = c.getresponse()
        if reply.status != 200:
            sys.exit(f"{reply.status}: {reply.read().decode()}")
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                sys.exit(event["error"]["message"])
            piece = "".join(choice["delta"].get("content", "") for choice in event["choices"])
            if piece and first is None:
                first = time.monotonic() - begin
            answer += piece
            if event.get("usage"):
                last = event
        return first, answer, last["usage"], last["vlcache"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vlcache")
    parser.add_argument("-m", "--model", required=True, type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--check", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    args, flags = parser.parse_known_args()
    server = Server(args.vlcache, *flags, model=args.model, dtype=args.dtype)
    messages, asked = [{"role": "system", "content": [text("You use a computer.")]}], []
    for step in range(1, args.steps + 1):
        messages.append(turn(step, args.seed))
        first, answer, usage, said = ask(server, messages, args.max_tokens)
        cached, times = usage["prompt_tokens_details"]["cached_tokens"], said["timings_ms"]
        print(json.dumps({"step": step, "prompt_tokens": usage["prompt_tokens"], "cached_tokens": cached, "ttft_ms": first and round(1000 * first), **{k: round(v) for k, v in times.items()}}), flush=True)
        asked.append((len(messages), answer))
        messages.append({"role": "assistant", "content": [text(answer)]})
    server.end()
    if not args.check:
        return
    server = Server(args.vlcache, *flags, "--cache-ram", "0", "--reuse", "off", model=args.model, dtype=args.dtype)
    differ = 0
    for step in range(args.check, args.steps + 1, args.check):
        n, answer = asked[step - 1]
        alone = ask(server, messages[:n], args.max_tokens)[1]
        differ += alone != answer
        print(json.dumps({"step": step, "equal": alone == answer}), flush=True)
    server.end()
    print(f"{differ} answers differ")
    sys.exit(differ > 0)


if __name__ == "__main__":
    main()
