#!/usr/bin/env python3
"""KL divergence between models on a text, position by position, from the logits that `vlcache logits` writes:

  kld.py run OUT --text FILE... --model "dense: -m DIR --dtype f32" --model "int4: -m DIR --dtype f32 --weights int4" \\
                                --model "decode of int4: -m DIR --dtype bf16 --weights int4 --prefill-chunk 8"
  kld.py table OUT --ratio int4/q4_0

A model is a name and flags of `vlcache logits`. "A of B" is compared with the model B, others with the first one. The text is cut into chunks of 512 tokens, each computed by itself
with a fresh cache. OUT/NAME/CHUNK.npz holds the results; results that are there are not computed again, so that a run may be ended at any time and resumed. `table` prints means, intervals
of 95 % from 4,000 bootstrap samples of blocks of 64 tokens, and ratios of two models' means on the same blocks. VLCACHE: the program."""
import argparse, hashlib, json, os, shlex, subprocess, tempfile
import numpy as np

VLCACHE = os.environ.get("VLCACHE", "build/release/vlcache")
BLOCK, SAMPLES = 64, 4000


def tokens(a, flags):
    model = flags[flags.index("-m") + 1]; text = "\n".join(open(f).read() for f in a.text)
    print("text:", ", ".join(f"{f} (sha256 {hashlib.sha256(open(f, 'rb').read()).hexdigest()[:16]})" for f in a.text), flush=True)
    line = subprocess.run([VLCACHE, "tokenize", "-m", model, "--jsonl", "-"], input=json.dumps(text) + "\n", stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(line)[: a.tokens]


def logits(flags, ids):
    """[tokens, vocabulary] f32"""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        path = os.path.join(folder, "x.safetensors")
        subprocess.run([VLCACHE, "logits", *flags, "--tokens", ",".join(map(str, ids)), "-o", path], check=True, stderr=subprocess.PIPE, text=True)
        with open(path, "rb") as f:
            n = int.from_bytes(f.read(8), "little"); entry = json.loads(f.read(n))["logits"]
            f.seek(8 + n + entry["data_offsets"][0]); return np.fromfile(f, np.float32, int(np.prod(entry["shape"]))).reshape(entry["shape"])


def log_softmax(rows):
    """in f64"""
    x = rows.astype(np.float64); x -= x.max(axis=1, keepdims=True); x -= np.log(np.exp(x).sum(axis=1, keepdims=True)); return x


def compare(expected, found):
    """of each row of logits: KL(expected || found), and whether both name the same token"""
    kld = []
    for i in range(0, len(expected), 32):
        p = log_softmax(expected[i:i + 32]); kld.append((np.exp(p) * (p - log_softmax(found[i:i + 32]))).sum(axis=1))
    return np.concatenate(kld), expected.argmax(axis=1) == found.argmax(axis=1)


def run(a):
    models = {}  # name: (reference, flags)
    for text in a.model:
        name, flags = text.split(":", 1); name, _, of = name.strip().partition(" of ") if " of " in name else (name.strip(), "", "")
        models[f"{name} of {of}" if of else name] = (of or next(iter(models), None), shlex.split(flags))
    references = {of for of, _ in models.values()}; ids = tokens(a, next(iter(models.values()))[1])
    for chunk in range(0, len(ids) // a.chunk):
        path = lambda name: os.path.join(a.out, name, f"{chunk:03d}.npz")
        missing = [n for n, (of, _) in models.items() if of and not os.path.exists(path(n))]; held = {}
        for name in [n for n in models if n in missing or any(models[m][0] == n for m in missing)]:
            of, flags = models[name]; found = logits(flags, ids[chunk * a.chunk:(chunk + 1) * a.chunk])
            if name in references: held[name] = found
            if name not in missing: continue
            kld, same = compare(held[of], found); os.makedirs(os.path.dirname(path(name)), exist_ok=True); np.savez(path(name), kld=kld, same=same)
            print(f"chunk {chunk}: {name}: {kld.mean():.6f}, {100 * same.mean():.2f} % the same token", flush=True)


def load(out, name):
    """[blocks] means of KLD and of same tokens"""
    files = sorted(os.listdir(os.path.join(out, name))); all_ = [np.load(os.path.join(out, name, f)) for f in files]
    return {f: [x[key].reshape(-1, BLOCK).mean(axis=1) for key in ("kld", "same")] for f, x in zip(files, all_)}


def table(a):
    found = {name: load(a.out, name) for name in sorted(os.listdir(a.out))}; r = np.random.default_rng(1)
    draw = lambda n: r.integers(0, n, (SAMPLES, n)); ends = lambda x: np.percentile(x, [2.5, 97.5])
    print("| model | tokens | KLD | 95 % | same token, % |\n|---|---:|---:|---|---:|")
    for name, of in found.items():
        kld, same = (np.concatenate([x[i] for x in of.values()]) for i in (0, 1)); low, high = ends(kld[draw(len(kld))].mean(axis=1))
        print(f"| {name} | {len(kld) * BLOCK} | {kld.mean():.3g} | {low:.3g} to {high:.3g} | {100 * same.mean():.2f} |")
    if a.ratio: print("\n| ratio | tokens | of means | 95 % |\n|---|---:|---:|---|")
    for one, other in (x.split("/") for x in a.ratio):
        both = sorted(set(found[one]) & set(found[other])); x, y = (np.concatenate([found[n][f][0] for f in both]) for n in (one, other))
        at = draw(len(x)); low, high = ends(x[at].mean(axis=1) / y[at].mean(axis=1))
        print(f"| {one} / {other} | {len(x) * BLOCK} | {x.mean() / y.mean():.3f} | {low:.3f} to {high:.3f} |")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter); commands = ap.add_subparsers(required=True)
    c = commands.add_parser("run"); c.set_defaults(run=run); c.add_argument("out"); c.add_argument("--text", nargs="+", required=True); c.add_argument("--tokens", type=int, default=4096)
    c.add_argument("--chunk", type=int, default=512); c.add_argument("--model", action="append", required=True)
    c = commands.add_parser("table"); c.set_defaults(run=table); c.add_argument("out"); c.add_argument("--ratio", action="append", default=[])
    a = ap.parse_args(); a.run(a)


if __name__ == "__main__": main()
