#!/usr/bin/env python3
"""What running answers and a long prompt cost each other, on a server that speaks OpenAI's API:

    studies/load/beside_prompt.py URL [--streams 4] [--prompt-tokens 8000 | --picture] [--rounds 3]

In each round: the prompt alone, then the streams alone, the prompt while they run, the streams alone again. Prints the time between tokens (ITL) of the streams,
idle and beside the prompt, its 99th percentiles' ratio, and the prompt's time to the first token, alone and beside them. No prompt comes twice. With --picture it
is a question about an image of 1280 x 800."""
import argparse
import json
import random
import statistics
import threading
import time

from agent_loop import turn
from load import ask, percentile


def completion(args, r, n_prompt, n_answer):
    return {"prompt": [r.randrange(args.first_id, args.last_id) for _ in range(n_prompt)], "max_tokens": n_answer, "temperature": 0, "ignore_eos": True, "stream": True,
            "model": "any", "stream_options": {"include_usage": True}}


def newcomer(args, r):
    if not args.picture:
        return completion(args, r, args.prompt_tokens, 1)
    return {"messages": [turn(0, r.random())], "max_tokens": 1, "temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}


def ask_or_fail(args, body):
    seen = ask(args, "/v1/chat/completions" if "messages" in body else "/v1/completions", body)
    if seen["error"]:
        raise SystemExit(seen["error"])
    return seen


def gaps(streams, begin, end):
    """Milliseconds between tokens, of pairs within a time."""
    return [1000 * (b - a) for s in streams for a, b in zip(s["events"], s["events"][1:]) if begin <= a and b <= end]


def round_of(args, r):
    alone = ask_or_fail(args, newcomer(args, r))
    streams = [None] * args.streams

    def stream(i, body):
        streams[i] = ask_or_fail(args, body)

    bodies = [completion(args, r, args.stream_prompt, args.stream_tokens) for _ in streams]
    threads = [threading.Thread(target=stream, args=(i, body)) for i, body in enumerate(bodies)]
    for thread in threads:
        thread.start()
    time.sleep(args.idle_seconds)
    beside = ask_or_fail(args, newcomer(args, r))
    for thread in threads:
        thread.join()
    first = max(s["events"][0] for s in streams)  # all of them decode
    last = min(s["events"][-1] for s in streams)
    if last < beside["events"][0]:
        raise SystemExit("the streams ended before the prompt was computed; raise --stream-tokens")
    ttft = lambda seen: 1000 * (seen["events"][0] - seen["start"])
    idle = gaps(streams, first, beside["start"]) + gaps(streams, beside["events"][-1], last)
    return dict(idle=idle, busy=gaps(streams, beside["start"], beside["events"][0]), alone=ttft(alone), beside=ttft(beside))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=8000)
    parser.add_argument("--picture", action="store_true")
    parser.add_argument("--stream-prompt", type=int, default=64)
    parser.add_argument("--stream-tokens", type=int, default=1500)
    parser.add_argument("--idle-seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--first-id", type=int, default=300)
    parser.add_argument("--last-id", type=int, default=30000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--api-key", default="")
    parser.add_argument("--timeout", type=float, default=3600)
    args = parser.parse_args()
    r = random.Random(args.seed)
    for i in range(args.rounds):
        found = round_of(args, r)
        idle, busy = percentile(found["idle"], 0.99), percentile(found["busy"], 0.99)
        print(json.dumps({"round": i, "itl_ms": {"idle_p50": round(statistics.median(found["idle"]), 1), "idle_p99": round(idle, 1),
                                                 "beside_p50": round(statistics.median(found["busy"]), 1), "beside_p99": round(busy, 1), "p99_ratio": round(busy / idle, 2)},
                          "ttft_ms": {"alone": round(found["alone"]), "beside": round(found["beside"]), "ratio": round(found["beside"] / found["alone"], 2)}}), flush=True)


if __name__ == "__main__":
    main()
