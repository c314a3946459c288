#!/usr/bin/env python3
"""Many requests over a few images, with less memory than they need: every answer as without a cache, and the hits.

    studies/reuse_load.py [--requests 1000] [--images 50] [--share 0.25] [--once] build/release/vlcache

--share: memory for the caches, as a share of what the images' KV and embeddings need. --once: no combination of images
comes twice, memory holds the images' KV, and the hit rate of the last tenth stands beside that of the first.
"""
import argparse
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models/tinydoc"
QUESTIONS = ["What is the TOTAL?", "What is the DATE?", "Read the page.", "How many red shapes?"]
SYSTEMS = ["", "Be brief.", "Answer in one word.", "Look at the page."]


def write_image(path, seed):
    """A BMP of 224 x 224 with blocks of random colours."""
    r = random.Random(seed)
    side, block = 224, 16
    rows = []
    for _ in range(side // block):
        row = b"".join(bytes([r.randrange(256)] * 3) * block for _ in range(side // block))
        rows += [row] * block
    data = b"".join(rows)
    path.write_bytes(struct.pack("<2sIHHI", b"BM", 54 + len(data), 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, side, side, 1, 24, 0, len(data), 0, 0, 0, 0) + data)


def run(vlcache, lines, *flags):
    p = subprocess.run([vlcache, "run", "-m", str(MODEL), "--requests", "-", "--dtype", "f32", "--temperature", "0", "--max-tokens", "12", *flags],
                       input="\n".join(map(json.dumps, lines)) + "\n", capture_output=True, text=True)
    if p.returncode != 0:
        sys.exit(p.stderr)
    return [json.loads(line) for line in p.stdout.splitlines()]


def mixed(r, images, n):
    """Some are asked for often (1 / rank), alone or in twos, in the middle of a conversation or not."""
    weights = [1 / (1 + i) for i in range(len(images))]
    for i in range(n):
        request = {"id": i, "prompt": r.choice(QUESTIONS), "images": r.choices(images, weights, k=r.choice([1, 1, 1, 2]))}
        if r.random() < 0.5:
            request["system"] = r.choice(SYSTEMS[1:])
        if r.random() < 0.02:
            request["reuse"] = "off"
        yield request


def once(r, images, n):
    seen = set()
    while len(seen) < n:
        chosen = tuple(r.sample(images, r.choice([2, 3])))
        if chosen not in seen:
            seen.add(chosen)
            yield {"id": len(seen), "prompt": r.choice(QUESTIONS), "images": list(chosen), "system": f"Request {len(seen)}."}


def rate(answers, source):
    images = [i for a in answers for i in a["cache"]["images"]]
    return sum(i["source"] in source for i in images) / max(1, len(images))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vlcache")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--images", type=int, default=50)
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--once", action="store_true")
    args = parser.parse_args()
    r = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="vlcache-load-") as folder:
        images = []
        for i in range(args.images):
            images.append(str(pathlib.Path(folder) / f"{i}.bmp"))
            write_image(pathlib.Path(images[-1]), i)
        image_bytes = 256 * (8 * 2 * 2 * 64 * 4 + 256 * 4)  # tinydoc in f32: KV and embeddings of 256 tokens
        if args.once:
            lines = list(once(r, images, args.requests))
            answers = run(args.vlcache, lines, "--reuse", "static:r=0.02", "--cache-ram", f"{args.images * image_bytes}B")
            n = len(answers) // 10
            first, last = (rate(part, ("ram", "prefix")) for part in (answers[n:2 * n], answers[-n:]))
            print(f"images found: {rate(answers, ('ram', 'prefix')):.3f} of all; second tenth {first:.3f}, last tenth {last:.3f}; why not: {json.dumps(answers[-1]['caches']['image_kv']['miss_reasons'])}, "
                  f"evicted {answers[-1]['caches']['image_kv']['evictions']} images, {answers[-1]['caches']['prefix']['evictions']} pages of prefixes")
            sys.exit(0 if last >= 0.95 * first else 1)
        lines = list(mixed(r, images, args.requests))
        plain = run(args.vlcache, lines, "--reuse", "off")
        ram = f"{int(args.share * args.images * image_bytes)}B"
        for flags in (["--reuse", "exact"], ["--reuse", "exact", "--lookahead", "16"], ["--reuse", "exact", "--batch", "4"], ["--reuse", "exact", "--cache-disk", f"{folder}/disk,1GB"]):
            answers = run(args.vlcache, lines, "--cache-ram", ram, *flags)
            differ = [a["id"] for a, b in zip(answers, plain) if a.get("token_ids") != b.get("token_ids") or "error" in a]
            tokens = sum(a["tokens"]["prompt"] for a in answers)
            found = sum(a["cache"]["prefix_tokens"] for a in answers)
            caches = answers[-1]["caches"]
            print(f"{' '.join(flags[1:]).replace(folder, '...')}: {len(differ)} of {len(answers)} answers differ; prompt tokens found {found / tokens:.3f}, "
                  f"embeddings hit {caches['encoder']['hits']} miss {caches['encoder']['misses']}, evicted prefixes {caches['prefix']['evictions']} "
                  f"embeddings {caches['encoder']['evictions']}, tiers {json.dumps({k: {x: v[x] for x in ('hits', 'bytes_read', 'bytes_written')} for k, v in caches['tiers'].items()})}")
            if differ:
                sys.exit(f"answers differ: {differ[:20]}")


if __name__ == "__main__":
    main()
