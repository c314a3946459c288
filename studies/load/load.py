#!/usr/bin/env python3
"""Load on a server that speaks OpenAI's API, ours or another's, and what its clients see of it:

    studies/load/load.py http://127.0.0.1:8080 --requests 64 --concurrency 8 --prompt-tokens 2000 --max-tokens 128
    studies/load/load.py URL --rate 0.5 --requests 100 --images DIR --image-reuse 0.8 --slo-ttft 2000 --slo-itl 100

Requests arrive in a closed loop (--concurrency) or at random at a mean rate (--rate a second, Poisson), the same ones in the same order for the same
--seed. Without --images they are token ids to /v1/completions, as long as they say on any server; --shared K of them (of --share of the requests) are
the same at the beginning. With --images they are questions to /v1/chat/completions about images of a folder: --image-reuse is the share of images that
were sent before. All are streamed. Prints percentiles of the time to the first token, between tokens (of all pairs of events that bring text) and
to the end (and what of that was not the model's, where a server says so), tokens a second, and how many requests met both of --slo-ttft and --slo-itl (its 99th
percentile within the request); --json FILE has every request.
Standard library alone."""
import argparse, base64, http.client, json, math, pathlib, queue, random, threading, time, urllib.parse


def percentile(values, share):
    """Nearest rank; none of none."""
    return sorted(values)[max(0, math.ceil(round(share * len(values), 6)) - 1)] if values else None


def data_uri(path):
    kind = {"jpg": "jpeg"}.get(path.suffix[1:].lower(), path.suffix[1:].lower())
    return f"data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def make_requests(a):
    """[(path, body)]"""
    r = random.Random(a.seed); tokens = lambda n: [r.randrange(a.first_id, a.last_id) for _ in range(n)]
    common = dict(max_tokens=a.max_tokens, stream=True, stream_options={"include_usage": True}, temperature=0, ignore_eos=True, model=a.model, **json.loads(a.extra))
    if a.images:
        files = sorted(p for p in pathlib.Path(a.images).iterdir() if p.suffix.lower() in (".png", ".jpg", ".jpeg", ".webp")); r.shuffle(files); seen, found = [], []
        for _ in range(a.requests):
            parts = []
            for _ in range(a.images_per_request):
                if seen and (not files or r.random() < a.image_reuse): path = r.choice(seen)
                else: path = files.pop(); seen.append(path)
                parts.append({"type": "image_url", "image_url": {"url": data_uri(path)}})
            found.append(("/v1/chat/completions", dict(common, messages=[{"role": "user", "content": [*parts, {"type": "text", "text": f"{a.question} ({r.randrange(10**6)})"}]}])))
        return found
    shared = tokens(a.shared)
    return [("/v1/completions", dict(common, prompt=(shared if r.random() < a.share else tokens(a.shared)) + tokens(a.prompt_tokens - a.shared))) for _ in range(a.requests)]


def ask(a, path, body):
    """What a client sees of one request."""
    url, data = urllib.parse.urlsplit(a.url), json.dumps(body).encode()
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {a.api_key}"} if a.api_key else {})}
    seen = dict(start=time.monotonic(), events=[], text="", usage=None, error=None)
    try:
        connection = http.client.HTTPConnection(url.hostname, url.port or 80, timeout=a.timeout); connection.request("POST", path, data, headers); reply = connection.getresponse()
        if reply.status != 200: raise OSError(f"{reply.status}: {reply.read(300).decode(errors='replace')}")
        ended = False
        for line in reply:
            if not line.startswith(b"data:"): continue
            now, payload = time.monotonic(), line[5:].strip()
            if payload == b"[DONE]": ended = True; break
            event = json.loads(payload)
            if "error" in event: raise OSError(json.dumps(event["error"]))
            if event.get("usage"): seen["usage"] = event["usage"]
            if event.get("vlcache"): seen["timings_ms"] = event["vlcache"]["timings_ms"]
            for choice in event.get("choices", []):
                text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
                if text: seen["events"].append(now); seen["text"] += text
        if not ended: raise OSError("the stream ended early")
        connection.close()
    except (OSError, http.client.HTTPException, ValueError) as e: seen["error"] = str(e) or type(e).__name__
    seen["end"] = time.monotonic()
    return seen


def drive(a, requests):
    """All of them, as they arrive: [what a client sees]"""
    found, line, r = [None] * len(requests), queue.Queue(), random.Random(a.seed + 1)

    def work():
        while (i := line.get()) is not None: found[i] = ask(a, *requests[i])
    threads = [threading.Thread(target=work) for _ in range(len(requests) if a.rate else min(a.concurrency, len(requests)))]
    for t in threads: t.start()
    for i in range(len(requests)):
        if a.rate and i: time.sleep(r.expovariate(a.rate))
        line.put(i)
    for _ in threads: line.put(None)
    for t in threads: t.join()
    return found


def summary(a, found):
    good = [f for f in found if not f["error"] and f["events"]]
    ttft = [1000 * (f["events"][0] - f["start"]) for f in good]; gaps = [[1000 * (y - x) for x, y in zip(f["events"], f["events"][1:])] for f in good]
    usage = [f["usage"] or {} for f in good]; seconds = max(f["end"] for f in found) - min(f["start"] for f in found)
    prompt, answer = (sum(u.get(k, 0) for u in usage) for k in ("prompt_tokens", "completion_tokens"))
    cached = sum((u.get("prompt_tokens_details") or {}).get("cached_tokens", 0) for u in usage)
    shares = lambda values: {f"p{round(100 * s)}": round(percentile(values, s), 1) for s in (0.5, 0.9, 0.95, 0.99)} if values else None
    overhead = [1000 * (f["end"] - f["start"]) - f["timings_ms"]["ttft"] + f["timings_ms"]["queue"] - f["timings_ms"]["decode"] for f in good if f.get("timings_ms")]  # our servers say what the model took
    kept = [t <= a.slo_ttft and (percentile(g, 0.99) or 0) <= a.slo_itl for t, g in zip(ttft, gaps)]
    return dict(requests=len(found), failed=len(found) - len(good), seconds=round(seconds, 2), requests_per_s=round(len(good) / seconds, 3), answer_tokens_per_s=round(answer / seconds, 2),
                prompt_tokens=prompt, answer_tokens=answer, cached_share=round(cached / max(1, prompt), 3), ttft_ms=shares(ttft), itl_ms=shares([x for g in gaps for x in g]),
                overhead_ms=shares(overhead), total_ms=shares([1000 * (f["end"] - f["start"]) for f in good]), slo_attainment=round(sum(kept) / max(1, len(found)), 3))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter); add = ap.add_argument
    add("url"); add("--requests", type=int, default=64); add("--concurrency", type=int, default=8); add("--rate", type=float, default=0); add("--seed", type=int, default=1)
    add("--prompt-tokens", type=int, default=512); add("--max-tokens", type=int, default=64); add("--shared", type=int, default=0); add("--share", type=float, default=1)
    add("--first-id", type=int, default=300); add("--last-id", type=int, default=30000); add("--model", default="any"); add("--api-key", default=""); add("--timeout", type=float, default=3600)
    add("--images"); add("--images-per-request", type=int, default=1); add("--image-reuse", type=float, default=0.5); add("--question", default="What does it say?")
    add("--slo-ttft", type=float, default=float("inf")); add("--slo-itl", type=float, default=float("inf")); add("--extra", default="{}", help="JSON that every body gets, too"); add("--json", type=pathlib.Path)
    a = ap.parse_args(); found = drive(a, make_requests(a)); print(json.dumps(summary(a, found), indent=1))
    for error in sorted({f["error"] for f in found if f["error"]}): print("failed:", error)
    if a.json: a.json.write_text("".join(json.dumps(f) + "\n" for f in found))
    raise SystemExit(any(f["error"] for f in found))


if __name__ == "__main__": main()
