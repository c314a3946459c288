#!/usr/bin/env python3
"""An agent that sends a screenshot a step, with all that was before:

    studies/load/agent_loop.py -m CHECKPOINT [--steps 50] [--dtype f32] [--check 5] build/release/vlcache [FLAG...]

Every step is a user's turn with one new image of 1280 x 800 and some text, and a short answer. Prints for each step the tokens of its prompt and how many
were found, the client's time to the first token, and what the server says of encoder and prefill. --check N: every Nth step is asked again, of a server that
keeps nothing, and must have the same answer (meant for f32). A checkpoint: random_checkpoint.py bench/shapes/smolvlm-256m.json. With --data FILE.jsonl (lines of
{images, question, answer}, as make_eval.py writes them) the steps are its pages and questions, and with --check 1 it says how many answers were right."""
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

from soak import Server, data_of

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


def image(data):
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(data).decode()}}


def turns(args):
    """[(message of the user, the right answer if there is one)]"""
    if args.data is None:
        return [(turn(step, args.seed), None) for step in range(1, args.steps + 1)]
    samples = [json.loads(line) for line in args.data.read_text().splitlines()[: args.steps]]
    images = [[image((args.data.parent / path).read_bytes()) for path in sample["images"]] for sample in samples]
    return [({"role": "user", "content": [*parts, text(sample["question"])]}, sample["answer"]) for parts, sample in zip(images, samples)]


def turn(step, seed):
    r = random.Random(f"{seed} {step}")
    words = " ".join(r.choice(["button", "field", "menu", "row", "page", "open", "done"]) for _ in range(12))
    return {"role": "user", "content": [image(screenshot(f"{seed} {step}")), text(f"Step {step}: {words}. What next?")]}


def ask(server, messages, args):
    """(seconds to the first token, text, usage, what the server says of it)"""
    body = {"messages": messages, "max_tokens": args.max_tokens, "temperature": 0, "ignore_eos": not args.data, "stream": True, "stream_options": {"include_usage": True}}
    data = json.dumps(body)
    with contextlib.closing(server.connect()) as c:
        begin, first, answer = time.monotonic(), None, ""
        c.request("POST", "/v1/chat/completions", data, {"content-type": "application/json"})
        reply = c.getresponse()
        if reply.status != 200:
            sys.exit(f"{reply.status}: {reply.read().decode()}")
        for data in data_of(reply):
            if data == "[DONE]":
                break
            event = json.loads(data)
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
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--system", default="You use a computer.")
    parser.add_argument("--seed", type=int, default=1)
    args, flags = parser.parse_known_args()
    server = Server(args.vlcache, *flags, model=args.model, dtype=args.dtype)
    messages, asked = [{"role": "system", "content": [text(args.system)]}] if args.system else [], []
    for step, (message, right) in enumerate(turns(args), 1):
        messages.append(message)
        first, answer, usage, said = ask(server, messages, args)
        cached, times = usage["prompt_tokens_details"]["cached_tokens"], said["timings_ms"]
        model_ms = times["vision"] + times["prefill"]
        print(json.dumps({"step": step, "prompt_tokens": usage["prompt_tokens"], "cached_tokens": cached, "ttft_ms": first and round(1000 * first), "times_model": first and round(1000 * first / model_ms, 2), **{k: round(v) for k, v in times.items()}}), flush=True)
        asked.append((len(messages), answer, right))
        messages.append({"role": "assistant", "content": [text(answer)]})
    server.end()
    if not args.check:
        return
    server = Server(args.vlcache, *flags, "--cache-ram", "0", "--reuse", "off", model=args.model, dtype=args.dtype)
    differ, n_right = 0, [0, 0]
    for step in range(args.check, len(asked) + 1, args.check):
        n, answer, right = asked[step - 1]
        alone = ask(server, messages[:n], args)[1]
        differ += alone != answer
        for i, said in enumerate((answer, alone)):
            n_right[i] += right is not None and said.strip() == right
        print(json.dumps({"step": step, "equal": alone == answer}), flush=True)
    server.end()
    if args.data:
        print(f"right: {n_right[0]}, without a cache {n_right[1]}")
    print(f"{differ} answers differ")
    sys.exit(differ > 0)


if __name__ == "__main__":
    main()
