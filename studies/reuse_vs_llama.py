#!/usr/bin/env python3
"""Time to the first token where a long piece of a prompt was seen before, beside llama-server:

    studies/reuse_vs_llama.py build/release/vlcache --llama-server DIR/llama-server --gguf TEXT.gguf [--images 1,4] [--rounds 3]

TEXT.gguf has random weights in the shape of bench/shapes/llava-next-1.1b.json's text_config. llama.cpp has no tower of that
shape, so there the images are as many tokens of random text, and our time stands with and without the encoder. The order
of requests is the same on both sides, each with 20 new tokens before the piece and 20 after it: first use, then the piece
after other text. `same start` asks the same beginning again with another end (ours: `vlcache bench -d`). llama-server runs
with its defaults, with --cache-reuse 256, and with that and one slot, since a request in another slot finds nothing.
All alternating, medians over the rounds. Meant for a machine that does nothing else."""
import argparse, json, pathlib, random, re, statistics, subprocess, time, urllib.request
from collections import defaultdict

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHAPE = ROOT / "bench/shapes/llava-next-1.1b.json"
TOKENS_OF_IMAGE, HALF_TEXT = 2340, 20
PORT = 18080
MODES = {"llama-server, defaults": [], "llama-server --cache-reuse 256": ["--cache-reuse", "256"], "llama-server --cache-reuse 256 -np 1": ["--cache-reuse", "256", "-np", "1"]}
CHOOSERS = ["vlcache:r=0", "vlcache:r=0.025", "vlcache:r=0.1"]


def ask(tokens):
    """(ms, prompt tokens that were computed) until one token is there"""
    body = json.dumps(dict(prompt=tokens, n_predict=1, temperature=0, cache_prompt=True)).encode()
    begin = time.monotonic()
    with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{PORT}/completion", body, {"Content-Type": "application/json"}), timeout=3600) as reply: answer = json.load(reply)
    return 1000 * (time.monotonic() - begin), answer["timings"]["prompt_n"]


def wait_until_up(server):
    for _ in range(1200):
        if server.poll() is not None: raise SystemExit(f"llama-server ended with {server.returncode}")
        try: urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=1); return
        except OSError: time.sleep(0.5)
    raise SystemExit("llama-server did not come up within ten minutes")


def llama_rows(a, n_images, seed):
    """[(row, ms, computed)]"""
    r, found = random.Random(seed), []
    some = lambda n: [r.randrange(300, 32000) for _ in range(n)]
    piece = some(n_images * TOKENS_OF_IMAGE)
    for mode, flags in MODES.items():
        server = subprocess.Popen([a.llama_server, "-m", a.gguf, "-t", a.threads, "-c", str(4 * (len(piece) + 512)), "--host", "127.0.0.1", "--port", str(PORT), *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until_up(server); ask(some(64))  # pages of the weights are there
            found.append((f"{mode}: first use", *ask(some(HALF_TEXT) + piece + some(HALF_TEXT))))
            begin = some(HALF_TEXT)
            found.append((f"{mode}: other text before", *ask(begin + piece + some(HALF_TEXT))))
            found.append((f"{mode}: same start", *ask(begin + piece + some(HALF_TEXT))))
        finally: server.terminate(); server.wait()
    return found


def our_rows(a, n_images, seed):
    flags = ["--random-weights", str(SHAPE), "--threads", a.threads, "-r", "1"]
    text = subprocess.run([a.vlcache, "bench", "reuse", *flags, "--images", str(n_images), "--seed", str(seed), *(x for c in CHOOSERS for x in ("--reuse", c))], capture_output=True, text=True, check=True).stdout
    found = []
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if len(cells) < 6 or not re.fullmatch(r"\d+", cells[0]): continue
        name, computed, ms, encoder = cells[1], float(cells[2]), float(cells[3]), float(cells[5])
        found.append((f"vlcache: {name}", ms, computed))
        if encoder > 1: found.append((f"vlcache: {name}, without the encoder", ms - encoder, computed))
    depth = n_images * TOKENS_OF_IMAGE + HALF_TEXT
    rate = json.loads(subprocess.run([a.vlcache, "bench", *flags, "-p", str(HALF_TEXT), "-n", "0", "-d", str(depth), "--fill", "random", "-o", "json"], capture_output=True, text=True, check=True).stdout)[0]["avg_ts"]
    return found + [("vlcache: same start", 1000 * HALF_TEXT / rate, HALF_TEXT)]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter); ap.add_argument("vlcache"); ap.add_argument("--llama-server", required=True); ap.add_argument("--gguf", required=True)
    ap.add_argument("--images", default="1"); ap.add_argument("--rounds", type=int, default=3); ap.add_argument("--threads", default="2")
    a = ap.parse_args()
    for n in (int(x) for x in a.images.split(",")):
        times, computed = defaultdict(list), {}
        for i in range(a.rounds):
            for row, ms, tokens in our_rows(a, n, i + 1) + llama_rows(a, n, i + 1): times[row].append(ms); computed[row] = tokens
        print(f"\n{n * TOKENS_OF_IMAGE} tokens seen before, {2 * HALF_TEXT} others, {a.rounds} rounds, {a.threads} threads\n\n| | first token, ms | spread | tokens computed |\n|---|---:|---:|---:|")
        for row, ms in times.items(): print(f"| {row} | {statistics.median(ms):.0f} | {min(ms):.0f} to {max(ms):.0f} | {computed[row]:.0f} |", flush=True)


if __name__ == "__main__": main()
