#!/usr/bin/env python3
"""Measures what storing prompts at their first use costs and gives: python3 studies/first_use.py MODEL [ROUNDS [PAGES]].

Reach: two servers share a folder; each round draws new pages (PAGES a question), asks the first server, waits two seconds, and asks the
second the same: the share of the prompt that it found. Then the first is killed, started again, and asked the same.
Cost: each round asks about new pages, waits until its KV is being written, and times the tokens of an answer of text alone,
alternately with --cache-first-use 4GiB and 0; printed: the ratio of the medians. Use an idle machine."""
import base64
import json
import os
import pathlib
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
import zlib

VLCACHE = os.environ.get("VLCACHE", "build/release/vlcache")
N_TOKENS = 400


class Server:
    def __init__(self, model, folder, *flags):
        self.process = subprocess.Popen([VLCACHE, "serve", "-m", model, "--port", "0", "--reuse", "exact", "--cache-disk", str(folder), *flags],
                                        stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if "/v1 serves" in line:
                self.url = line.split("/v1")[0]
                break

    def ask(self, text, images=(), n=4):
        parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(image).decode()}} for image in images]
        parts.append({"type": "text", "text": text})
        body = {"messages": [{"role": "user", "content": parts}], "max_tokens": n, "temperature": 0, "ignore_eos": n > 4}
        request = urllib.request.Request(self.url + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
        start = time.monotonic()
        usage = json.load(urllib.request.urlopen(request))["usage"]
        return usage, time.monotonic() - start

    def written(self):
        text = urllib.request.urlopen(self.url + "/metrics").read().decode()
        return float(next(line for line in text.splitlines() if line.startswith("vlcache:first_use_bytes_total")).split()[-1])

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait()


def page_of(n, size=640):
    """A page of grey stripes that no other number has, as PNG."""
    rows = b"".join(b"\0" + bytes((n * 37 + x // 16 * (y // 16 + n) * 11) % 256 for x in range(size)) for y in range(size))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def found(usage):
    return usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]


def main():
    model, rounds, n_pages = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8, int(sys.argv[3]) if len(sys.argv) > 3 else 1
    pages_of = lambda n: [page_of(n * n_pages + i) for i in range(n_pages)]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        a, b = Server(model, folder / "shared"), Server(model, folder / "shared")
        shares = []
        for i in range(rounds):
            pages = pages_of(i)
            a.ask("What is the total?", pages)
            time.sleep(2)
            usage, _ = b.ask("What is the total?", pages)
            shares.append(found(usage))
        print(f"found by a second server after two seconds: {min(shares):.3f} to {max(shares):.3f} of {usage['prompt_tokens']} tokens")
        pages = pages_of(rounds)
        a.ask("What is the total?", pages)
        time.sleep(2)
        a.end(signal.SIGKILL)
        a = Server(model, folder / "shared")
        print(f"found after kill -9 and a restart: {found(a.ask('What is the total?', pages)[0]):.3f}")
        a.end(), b.end()
        servers = {flag: Server(model, folder / flag, "--cache-first-use", flag) for flag in ("4GiB", "0")}
        speeds = {flag: [] for flag in servers}
        for i in range(2 * rounds):
            for flag, server in (list(servers.items()) if i % 2 else list(servers.items())[::-1]):
                before = server.written()
                server.ask("What is the total?", pages_of(1000 + i))
                until = time.monotonic() + 0.6
                while server.written() == before and time.monotonic() < until:
                    time.sleep(0.002)
                usage, seconds = server.ask(f"Write a long text about number {i}.", n=N_TOKENS)
                speeds[flag].append(usage["completion_tokens"] / seconds)
        medians = {flag: statistics.median(values) for flag, values in speeds.items()}
        print(f"tokens/s beside writing {medians['4GiB']:.1f}, without {medians['0']:.1f}: {medians['4GiB'] / medians['0']:.3f}"
              f" ({servers['4GiB'].written() / 2**20:.0f} MiB written)")
        for server in servers.values():
            server.end()


if __name__ == "__main__":
    main()
