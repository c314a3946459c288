#!/usr/bin/env python3
"""Many streams for a long time, each answer that of the request by itself, and no growth of memory:

    studies/load/soak.py [--seconds 1800] [--streams 32] [--leave 0.05] build/release/vlcache

The small model computes in f32. First every request of the pool is asked alone, of a server that keeps nothing; then the streams draw from the pool, text and
images, one and several, short and long, streamed and not, of several conversations that grow; some clients leave in the middle of an answer. Closes with a
line of JSON; exits with 1 for a wrong answer, an error, requests left behind, or memory that grew after the warm-up (by --growth) and in as many further
times as --patience says: the requests computed at once decide the peak, a leak continues."""
import argparse
import base64
import contextlib
import http.client
import json
import pathlib
import random
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from server import ServerProcess, data_of  # noqa: E402

MODEL = ROOT / "models/tinydoc"
QUESTIONS = ["What is the TOTAL?", "What is the DATE?", "Read the page.", "How many red shapes?", "Who?"]


class Server(ServerProcess):
    def __init__(self, vlcache, *flags, model=MODEL, dtype="f32"):
        super().__init__([vlcache, "serve", "-m", model, "--port", "0", "--dtype", dtype, *(() if "--reuse" in flags else ("--reuse", "exact")), *flags])
        self.ready()

    def connect(self, timeout=3600):
        return super().connect(timeout)

    def ask(self, body, stream=False, leave_after=None):
        """The text; None for a client that left after so many events."""
        with contextlib.closing(self.connect()) as c:
            c.request("POST", "/v1/chat/completions", json.dumps({**body, "stream": stream}), {"content-type": "application/json"})
            reply = c.getresponse()
            if not stream or reply.status != 200:
                text = reply.read()
                if reply.status != 200:
                    raise OSError(f"{reply.status}: {text[:300]}")
                return json.loads(text)["choices"][0]["message"]["content"]
            text = ""
            for n, data in enumerate(data_of(reply)):
                if n == leave_after:
                    return None
                if data == "[DONE]":
                    return text
                event = json.loads(data)
                if "error" in event:
                    raise OSError(event["error"]["message"])
                text += "".join(choice["delta"].get("content", "") for choice in event["choices"])
            raise OSError("the stream ended early")


def make_pool(n, seed):
    """[body]"""
    r = random.Random(seed)
    parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()}}
                for path in sorted((MODEL / "demo").glob("*.png"))]
    pool = []
    for i in range(n):
        ask = lambda images: {"role": "user", "content": [*r.sample(parts, images), {"type": "text", "text": r.choice(QUESTIONS)}]}
        messages = [{"role": "system", "content": f"Be brief, {r.randrange(4)}."}] if r.random() < 0.5 else []
        messages.append(ask(r.choice([0, 1, 1, 2])))
        for _ in range(r.choice([0, 0, 1, 2])):
            messages += [{"role": "assistant", "content": "Yes."}, ask(r.choice([0, 0, 1]))]
        pool.append({"messages": messages, "temperature": 0, "max_tokens": r.choice([1, 8, 24, 48])})
    return pool


def soak(server, pool, alone, args):
    """Draws from the pool until the time is up, or until memory has stopped growing: what went wrong, counts, memory after the warm-up and at the end."""
    stop, lock = threading.Event(), threading.Lock()
    wrong, counts = [], dict(answers=0, left=0, seconds=0)

    def draw(stream):
        r = random.Random(f"{args.seed} {stream}")
        while not stop.is_set():
            i = r.randrange(len(pool))
            leave = r.randrange(6) if r.random() < args.leave else None
            try:
                text = server.ask(pool[i], stream=leave is not None or r.random() < 0.7, leave_after=leave)
                problem = text is not None and text != alone[i] and f"request {i}: {text!r}, alone {alone[i]!r}"
            except (OSError, http.client.HTTPException, ValueError) as e:
                text, problem = "", f"request {i}: {e!r}"
            with lock:
                counts["left" if text is None else "answers"] += 1
                if problem:
                    wrong.append(problem)

    def highest(seconds):
        """Of resident bytes, seen every second."""
        until, most = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            most = max(most, server.resident_bytes())
            time.sleep(min(1, seconds))
        counts["seconds"] += seconds
        return most

    threads = [threading.Thread(target=draw, args=(i,)) for i in range(args.streams)]
    for thread in threads:
        thread.start()
    warm, then = highest(args.warm_up * args.seconds), highest((1 - args.warm_up) * args.seconds)
    for _ in range(args.patience):
        if wrong or not grew(warm, then, args):
            break
        warm, then = then, highest(args.seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return wrong, counts, (warm, then)


def grew(warm, then, args):
    return then > (1 + args.growth) * warm


def is_idle(server):
    for _ in range(200):
        if server.get("/v1/cache/stats")["requests"] == {"running": 0, "waiting": 0}:
            return True
        time.sleep(0.05)
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vlcache")
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--pool", type=int, default=96, help="different requests")
    parser.add_argument("--leave", type=float, default=0.05, help="share of the clients that leave")
    parser.add_argument("--warm-up", type=float, default=0.5, help="share of the time after which memory must not grow")
    parser.add_argument("--growth", type=float, default=0.05, help="share of it that is no growth")
    parser.add_argument("--patience", type=int, default=3, help="times as long again in which memory may stop growing")
    parser.add_argument("--cache-ram", default="64MiB", help="little, so that much is evicted")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    pool = make_pool(args.pool, args.seed)
    server = Server(args.vlcache, "--cache-ram", "0", "--reuse", "off")
    alone = [server.ask(body) for body in pool]
    server.end()
    server = Server(args.vlcache, "--cache-ram", args.cache_ram)
    wrong, counts, (warm, then) = soak(server, pool, alone, args)
    idle, caches = is_idle(server), server.get("/v1/cache/stats")
    status = server.end()
    print(json.dumps({**counts, "wrong": len(wrong), "idle": idle, "exit": status, "streams": args.streams,
                      "resident_mib": {"warm": warm >> 20, "then": then >> 20}, "prefix_hits": caches["prefix"]["hits"], "evictions": caches["prefix"]["evictions"]}))
    for problem in wrong[:20]:
        print("wrong:", problem)
    if grew(warm, then, args):
        print(f"memory grew after the warm-up: {warm >> 20} to {then >> 20} MiB")
    sys.exit(bool(wrong) or grew(warm, then, args) or not idle or status != 0 or counts["answers"] == 0)


if __name__ == "__main__":
    main()
