#!/usr/bin/env python3
"""Random schemas as response_format, answers of a model at temperature 1 (random weights wander furthest): every answer that
finished must satisfy its schema, says Python's jsonschema.

  schema_check.py VLCACHE MODEL_DIR [N [FIRST_SEED]]
"""
import collections
import concurrent.futures
import json
import pathlib
import sys
import urllib.error
import urllib.request

import jsonschema

TESTS = pathlib.Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "e2e")]
from schemas import random_schema  # noqa: E402
from server import ServerProcess  # noqa: E402

VALIDATOR = jsonschema.Draft202012Validator


def ask(port, seed):
    body = {"messages": [{"role": "user", "content": "Answer."}], "temperature": 1, "seed": seed, "max_tokens": 1500,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": random_schema(seed)}}}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode())
    try:
        return json.load(urllib.request.urlopen(request, timeout=600))["choices"][0]
    except urllib.error.HTTPError as e:
        return {"finish_reason": "refused", "message": {"content": e.read().decode()}}


def verdict(seed, choice):
    """"valid", "length", "refused", or the fault."""
    if choice["finish_reason"] != "stop":
        return choice["finish_reason"]
    try:
        VALIDATOR(random_schema(seed), format_checker=VALIDATOR.FORMAT_CHECKER).validate(json.loads(choice["message"]["content"]))
    except (jsonschema.ValidationError, ValueError) as e:
        return f"wrong: {e}"
    return "valid"


def check(port, seeds):
    counts, wrong = collections.Counter(), []
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for seed, choice in zip(seeds, pool.map(lambda seed: ask(port, seed), seeds)):
            said = verdict(seed, choice)
            counts[said.split(":")[0]] += 1
            if said.startswith("wrong") or said == "refused":
                wrong.append((seed, said, choice["message"]["content"]))
    return counts, wrong


def main():
    vlcache, model = sys.argv[1:3]
    n, first = int((sys.argv[3:] or [1000])[0]), int((sys.argv[4:] or [0])[0])
    server = ServerProcess([vlcache, "serve", "-m", model, "--port", "0"])
    counts, wrong = check(server.port, range(first, first + n))
    server.end()
    for seed, said, text in wrong[:20]:
        print(f"seed {seed}: {said}\n  {json.dumps(random_schema(seed))}\n  {text}")
    print(f"{n} schemas: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
