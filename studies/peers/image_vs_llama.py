#!/usr/bin/env python3
"""Time to the first token of a prompt with one image that was never seen, beside llama-server:

    studies/peers/image_vs_llama.py build/release/vlcache --shape bench/shapes/qwen3-vl-2b.json --llama-server DIR/llama-server --gguf TEXT.gguf --mmproj MMPROJ.gguf [--image-tokens 2000] [--rounds 3]

The files are made by random_qwen3_vl.py for the same shape. Both programs get an image of random pixels of one size and 40 tokens beside it, alternating, medians over the rounds; both have read another image
of that size before they are timed. Ours: `vlcache bench reuse`, its row without any cache, from pixels to token. llama-server: a request over HTTP with a BMP, so that unpacking costs next to nothing; bf16
weights, KV in its default f16. The encoder's share is between two lines of its log. Meant for a machine that does nothing else."""
import argparse, base64, json, math, os, pathlib, random, re, statistics, struct, subprocess, tempfile, time, urllib.request

CELL = 32  # pixels of a token's side
PORT = 18080
MARKER = "<__media__>"  # of the image's place; random in llama-server unless the environment names it
ROW = re.compile(r"^\| (\d+) \| all computed \| \d+ \| (\d+) \| .* \| (\d+) \| [\d.]+ \| [\d.]+ \|$", re.M)


def grid(n_tokens):
    """(rows, columns) that `bench reuse` chooses for so many tokens"""
    rows = max(1, math.floor(math.sqrt(0.75 * n_tokens) + 0.5)); return rows, max(1, (n_tokens + rows // 2) // rows)


def bmp(rows, cols, seed):
    height, width = rows * CELL, cols * CELL; pixels = random.Random(seed).randbytes(3 * width * height)  # a row is a multiple of four bytes
    return struct.pack("<2sIHHI", b"BM", 54 + len(pixels), 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, len(pixels), 2835, 2835, 0, 0) + pixels


class LlamaServer:
    def __init__(self, a):
        self.log = tempfile.NamedTemporaryFile(prefix="llama-server-", suffix=".log", delete=False); self.seen = 0
        flags = ["-m", a.gguf, "--mmproj", a.mmproj, "-t", a.threads, "-c", "16384", "-np", "1", "--cache-ram", "0", "--host", "127.0.0.1", "--port", str(PORT), "--log-timestamps", "--log-prefix", "--log-colors", "off", "-lv", "4", *a.llama_flags.split()]
        self.process = subprocess.Popen([a.llama_server, *flags], stdout=self.log, stderr=self.log, env=os.environ | {"LLAMA_MEDIA_MARKER": MARKER})
        for _ in range(1200):
            if self.process.poll() is not None: raise SystemExit(f"llama-server ended with {self.process.returncode}; see {self.log.name}")
            try: urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=1); return
            except OSError: time.sleep(0.5)
        raise SystemExit(f"llama-server did not come up within ten minutes; see {self.log.name}")

    def ask(self, image):
        """(ms to the first token, of which ms in the encoder, prompt tokens)"""
        letters = lambda: "".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=19))  # a token each; start and end of the image are two more
        prompt = dict(prompt_string=f"{letters()}{MARKER}{letters()}", multimodal_data=[base64.b64encode(image).decode()])
        request = urllib.request.Request(f"http://127.0.0.1:{PORT}/completion", json.dumps(dict(prompt=prompt, n_predict=1, temperature=0, cache_prompt=False)).encode(), {"Content-Type": "application/json"})
        begin = time.monotonic()
        with urllib.request.urlopen(request, timeout=3600) as reply: answer = json.load(reply)
        return 1000 * (time.monotonic() - begin), self.encoder_ms(), answer["timings"]["prompt_n"]

    def encoder_ms(self):
        """Of the request that just ended."""
        time.sleep(0.5)  # its log is written by a thread
        text = pathlib.Path(self.log.name).read_text(errors="replace"); new, self.seen = text[self.seen:], len(text)
        def at(words):
            found = re.search(rf"^(\d+)\.(\d+)\.(\d+)\.(\d+) .*{words}", new, re.M)
            if not found: raise SystemExit(f"no line '{words}' in {self.log.name}")
            minutes, seconds, ms, us = map(int, found.groups()); return 1000 * (60 * minutes + seconds) + ms + us / 1000
        return at("decoding image batch 1/") - at("encoding mtmd batch")

    def stop(self): self.process.terminate(); self.process.wait(); self.log.close()


def ours(a, seed):
    flags = ["--random-weights", a.shape, "--threads", a.threads, "--image-tokens", str(a.image_tokens), "--reuse", "vlcache:r=0", "-r", "1", "--seed", str(seed)]
    text = subprocess.run([a.vlcache, "bench", "reuse", *flags], capture_output=True, text=True, check=True).stdout; found = ROW.search(text)
    if not found: raise SystemExit(f"no row 'all computed' in:\n{text}")
    tokens, ttft, encoder = map(float, found.groups()); return ttft, encoder, tokens + 40


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter); ap.add_argument("vlcache"); ap.add_argument("--shape", required=True)
    for name in ("--llama-server", "--gguf", "--mmproj"): ap.add_argument(name, required=True)
    ap.add_argument("--image-tokens", type=int, default=2000); ap.add_argument("--rounds", type=int, default=3); ap.add_argument("--threads", default="2"); ap.add_argument("--llama-flags", default="-fa on", help="further flags of llama-server (-fa on)")
    a = ap.parse_args(); rows, cols = grid(a.image_tokens); server = LlamaServer(a); times = {"vlcache": [], "llama-server": []}
    try:
        server.ask(bmp(rows, cols, 0))
        for i in range(1, a.rounds + 1):
            for name, found in (("vlcache", ours(a, i)), ("llama-server", server.ask(bmp(rows, cols, i)))): times[name].append(found); print(f"round {i}, {name}: {found[0]:.0f} ms, encoder {found[1]:.0f}, {found[2]:.0f} tokens", flush=True)
    finally: server.stop()
    os.unlink(server.log.name)
    medians = {name: [statistics.median(column) for column in zip(*((ttft, encoder, ttft - encoder) for ttft, encoder, _ in found))] for name, found in times.items()}
    print(f"\nAn image of {cols * CELL} x {rows * CELL}, {rows * cols} tokens, and 40 others; {a.rounds} rounds, {a.threads} threads\n\n| | first token, ms | spread | encoder, ms | the rest, ms |\n|---|---:|---:|---:|---:|")
    for name, found in times.items(): print(f"| {name} | {medians[name][0]:.0f} | {min(found)[0]:.0f} to {max(found)[0]:.0f} | {medians[name][1]:.0f} | {medians[name][2]:.0f} |")
    print("| llama-server / vlcache | {:.2f} | | {:.2f} | {:.2f} |".format(*(theirs / mine for theirs, mine in zip(medians["llama-server"], medians["vlcache"]))))


if __name__ == "__main__": main()
