#!/usr/bin/env python3
"""Crowds that use all pages of a small KV cache while their policies compress it: every answer must be the one that the request has alone.

    studies/load/crowd.py [--seconds 600] [--only auto ...] build/release/vlcache

Each crowd asks every request of its pool alone first, of a server without caches and with as much memory, then all of them at once, over and over until its share
of the time is up (once with --seconds 0): streamed and not, some for two answers. Models compute in f32. Prints a line of JSON for each crowd; exits with 1 for an
answer that was lost or is another one."""
import argparse
import base64
import concurrent.futures
import json
import pathlib
import random
import sys
import time

import soak

ROOT = soak.ROOT
FIXTURES = ROOT / "tests/fixtures/models"
POLICIES = ["auto", "snapkv+per_error", "draft", "knorm+pyramid/keyformer", "vl-cache", "h2o/h2o", "snapkv/tova", "key_diff+global", "am:ahead=4",
            "pyramidkv/streaming", "adakv", "full"]
# name: model, memory, policies, requests at once, tokens of an answer
CROWDS = {
    "auto": (soak.MODEL, "6MiB", ["auto"], 12, 100),
    "per_error": (soak.MODEL, "6MiB", ["snapkv+per_error"], 12, 100),
    "draft": (soak.MODEL, "6MiB", ["pointer@answer:ahead=8+global"], 12, 100),
    "mixed": (soak.MODEL, "10MiB", POLICIES, 24, 200),
    "m-rope": (FIXTURES / "qwen2.5-vl-flat", "4MiB", POLICIES, 32, 100),
}


def budget_of(policy):
    return {"full": None, "snapkv+per_error": "error=0.05"}.get(policy, "0.3")


def pool_of(name, n, seed=1):
    model, _, policies, _, n_tokens = CROWDS[name]
    r = random.Random(seed)
    images = [path.read_bytes() for path in sorted((model / "demo").glob("*.png") if (model / "demo").exists() else model.glob("image-*.png"))]
    pool = []
    for i in range(n):
        content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(r.choice(images)).decode()}}]
        content.append({"type": "text", "text": f"Read the page. {'What is the TOTAL? ' * r.randrange(1, 12)}"})
        policy = policies[i % len(policies)]
        body = {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": n_tokens, "ignore_eos": True, "n": 2 if i % 6 == 5 else 1}
        body.update([{}, {"temperature": 0.7, "seed": i}, {"logprobs": True, "top_logprobs": 2}, {"response_format": {"type": "json_object"}}, {}][i % 5])
        body["vlcache"] = {"kv": policy, **({"kv_budget": budget_of(policy)} if budget_of(policy) else {})}
        pool.append(body)
    return pool


def ask(server, body, stream):
    """The texts of all answers."""
    if stream and body["n"] == 1:
        return [server.ask(body, stream=True)]
    reply = server.answer("POST", "/v1/chat/completions", body, connection=server.connect())
    if reply.status != 200:
        raise OSError(f"{reply.status}: {reply.text[:300]}")
    return [choice["message"]["content"] for choice in json.loads(reply.text)["choices"]]


def crowd(vlcache, name, seconds, most=64):
    """`most`: requests at once."""
    model, memory, _, n, _ = CROWDS[name]
    n = min(n, most)
    pool = pool_of(name, n)
    alone = soak.Server(vlcache, "--kv-memory", memory, "--reuse", "off", model=model)
    expected = [ask(alone, body, False) for body in pool]
    alone.end()
    server = soak.Server(vlcache, "--kv-memory", memory, "--parallel", str(n), "--max-waiting", "1024", model=model)
    said = dict(crowd=name, answers=0, lost=0, wrong=0)
    errors = []
    until = time.monotonic() + seconds

    def draw(i):
        try:
            found = ask(server, pool[i], stream=i % 2 == 1)
        except OSError as e:
            errors.append(f"request {i} ({pool[i]['vlcache']['kv']}): {e}")
            return "lost"
        if found != expected[i]:
            errors.append(f"request {i} ({pool[i]['vlcache']['kv']}): {found} instead of {expected[i]}"[:2000])
            return "wrong"
        return "answers"

    with concurrent.futures.ThreadPoolExecutor(n) as threads:
        while True:
            for what in threads.map(draw, random.sample(range(n), n)):
                said[what] += 1
            if time.monotonic() >= until:
                break
    metrics = server.answer("GET", "/metrics", connection=server.connect()).text.decode()
    for key, metric in (("preemptions", "vllm:num_preemptions_total"), ("different", "vlcache:replayed_tokens_different_total")):
        said[key] = sum(int(float(line.rsplit(" ", 1)[1])) for line in metrics.splitlines() if line.startswith(metric))
    server.end()
    return said, errors


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600, help="of all crowds together")
    parser.add_argument("--only", nargs="*", default=list(CROWDS), choices=list(CROWDS))
    parser.add_argument("vlcache", type=pathlib.Path)
    args = parser.parse_args()
    failed = False
    for name in args.only:
        said, errors = crowd(args.vlcache, name, args.seconds / len(args.only))
        print(json.dumps(said), *errors[:5], sep="\n", flush=True)
        failed = failed or said["lost"] or said["wrong"] or said["different"]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
