#!/usr/bin/env python3
"""Hit rates of servers beside the rates that `vlcache simulate` predicts, of the same requests:

    studies/load/replicas.py [--routes rr,image] [--clients 4] [--cache-ram 24MB] [flags of studies/picture_trace.py] build/release/vlcache

For every route, without and with a Redis server, as many servers of tinydoc as --replicas says (one thread each) are sent the trace by --clients, each
request where the simulation sends it, the turns of a conversation one after the other. An image counts as found if its KV is not computed; possible are those
that an earlier request had. Prints a table, mean and range of --runs and of simulations; --within POINTS: exits with 1 if the means differ by more.
From the clock of the runs, not from their hits, the simulation takes how long the encoder needs, how much the time per token varies, by which servers evict,
and how fast servers write to Redis (slowly while they compute, and more slowly on a busy machine: at the least priority).
Answers are the same letter again and again (logit_bias), so that the texts of all turns are known before. --json FILE gets every run."""
import argparse
import base64
import contextlib
import dataclasses
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from soak import MODEL, ROOT, Server

sys.path += [str(ROOT / "studies"), str(ROOT / "tests/e2e")]
import picture_trace  # noqa: E402
from program import RedisServer  # noqa: E402

PAGES = sorted((ROOT / "tests/fixtures/tinydoc/pages").glob("*.png"))
SEEDS = 8  # simulations, whose mean is compared


def run_json(command):
    p = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if p.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {p.stderr}")
    return [json.loads(line) for line in p.stdout.splitlines()]


def sizes_of_model():
    """(bytes of a token's KV in bf16, bytes of its embedding per byte of that, share of a reused image that is recomputed)"""
    text = json.loads((MODEL / "config.json").read_text())["text_config"]
    kv = 2 * text["num_hidden_layers"] * text["num_key_value_heads"] * text["head_dim"] * 2
    return kv, 2 * text["hidden_size"] / kv, json.loads((MODEL / "reuse_plan.json").read_text())["mean"]


def simulate(a, trace, route, redis, folder, times, seed):
    """(the line of the simulation, the line of each request)"""
    kv, embedding, recompute = sizes_of_model()
    each = folder / "each.jsonl"
    flags = ["--block", a.block, "--capacity", bytes_of(a.cache_ram) // (a.block * kv), "--replicas", a.replicas, "--route", route,
             "--cache-prefixes", a.cache_prefixes, "--recompute", recompute, "--embedding-bytes", embedding, "--beside", (a.clients - 1) / a.replicas,
             "--encoder-cost", times.encoder_cost, "--cost-spread", times.spread, "--seed", seed, "--each", each]
    line = run_json([a.vlcache, "simulate", trace, *flags, *(["--shared", 0, "--delay", a.clients - 1, "--write-rate", times.write_rate] if redis else [])])[0]
    return line, [json.loads(text) for text in each.read_text().splitlines()]


@dataclasses.dataclass
class Times:
    """The simulation's inputs from the clock of a run; hits are its own."""
    encoder_cost: float = 0.5
    spread: float = 0
    write_rate: int = 0  # blocks that a replica writes from one request to the next

    @classmethod
    def of(cls, a, runs):
        vision, per_token, rates = [], [], []
        for run in runs:
            for answer in run.answers:
                if [image["source"] for image in answer["cache"]["images"]] != ["computed"]:
                    continue
                n = answer["usage"]["prompt_tokens"] - answer["cache"]["prefix_tokens"]
                per_token.append(answer["timings_ms"]["prefill"] / n)
                if answer["cache"]["images"][0]["encoder"] == "computed":
                    vision.append(answer["timings_ms"]["vision"])
            rates += run.write_rates()
        cost = statistics.median(vision) / (picture_trace.IMAGE_TOKENS * statistics.median(per_token))
        rate = max(1, round(statistics.mean(rates) / (a.block * sizes_of_model()[0]))) if rates else 0
        return cls(round(cost, 3), round(statistics.stdev(map(math.log, per_token)), 2), rate)


def bytes_of(text):
    number = text.rstrip("KMGiB")
    return int(float(number) * {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[text[len(number):]])


class Clients:
    """Send the requests in their order; a conversation's turn begins after the one before has ended."""

    def __init__(self, servers, requests, replicas):
        self.servers, self.requests, self.replicas = servers, requests, replicas
        self.answers, self.error, self.next, self.running, self.change = [None] * len(requests), None, 0, set(), threading.Condition()
        self.seconds, self.redis = 0, []  # the statistics of each server's tier

    def take(self):
        with self.change:
            while not self.error and self.next < len(self.requests) and self.requests[self.next]["session"] in self.running:
                self.change.wait()
            if self.error or self.next == len(self.requests):
                return None
            self.next += 1
            self.running.add(self.requests[self.next - 1]["session"])
            return self.next - 1

    def work(self):
        while (i := self.take()) is not None:
            try:
                self.answers[i] = self.ask(self.servers[self.replicas[i]], self.requests[i])
            except (OSError, ValueError, KeyError) as e:
                self.error = f"request {i}: {e}"
            with self.change:
                self.running.remove(self.requests[i]["session"])
                self.change.notify_all()

    def ask(self, server, request):
        with contextlib.closing(server.connect()) as c:
            c.request("POST", "/v1/chat/completions", request["body"], {"content-type": "application/json"})
            told = json.loads(c.getresponse().read())
        if "error" in told:
            raise OSError(told["error"]["message"])
        if told["usage"]["prompt_tokens"] != request["input_length"]:
            raise OSError(f"the trace has {request['input_length']} tokens, the server {told['usage']['prompt_tokens']}")
        return {**told["vlcache"], "usage": told["usage"]}

    def run(self, n):
        threads, begin = [threading.Thread(target=self.work) for _ in range(n)], time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.error:
            sys.exit(self.error)
        self.seconds = time.monotonic() - begin
        tiers = [server.get("/v1/cache/stats")["tiers"] for server in self.servers]
        self.redis = [tier["redis"] for tier in tiers if "redis" in tier]
        return self

    def write_rates(self):
        """Bytes that each server can write to Redis from one request to the next."""
        between = 1000 * self.seconds / len(self.requests)
        return [between * tier["bytes_written"] / tier["write_ms"] for tier in self.redis if tier["write_ms"] > 0]


def make_requests(a):
    """[line of the trace, with the body for the server]"""
    letter = run_json([a.vlcache, "tokenize", "-m", MODEL, picture_trace.ANSWER])[0][0]
    parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()}} for path in PAGES[:a.pages]]
    found = []
    for line, one in picture_trace.trace(a):
        body = {"messages": one.messages(lambda page: parts[page]), "max_tokens": line["output_length"], "temperature": 0, "ignore_eos": True, "logit_bias": {str(letter): 100}}
        found.append({**line, "body": json.dumps(body)})
    return found


def measure(a, requests, replicas, redis, folder):
    """[what a server reports of the caches, for each request]"""
    with contextlib.ExitStack() as stack:
        flags = ["-t", "1", "--cache-ram", a.cache_ram, "--reuse", "vlcache"]
        if redis:
            store = RedisServer(folder)
            stack.callback(store.end)
            flags += ["--cache-redis", f"redis://127.0.0.1:{store.port}", "--cache-prefixes", a.cache_prefixes]
        servers = []
        for _ in range(a.replicas):
            servers.append(Server(a.vlcache, *flags, dtype="bf16"))
            stack.callback(servers[-1].end)
        return Clients(servers, requests, replicas).run(a.clients)


def compare(a, trace, requests, route, redis, folder):
    """Figures of one route."""
    line, each = simulate(a, trace, route, redis, folder, Times(), a.seed)
    runs = [measure(a, requests, [one["replica"] for one in each], redis, folder) for _ in range(a.runs)]
    times = Times.of(a, runs)
    lines = [simulate(a, trace, route, redis, folder, times, seed)[0] for seed in range(a.seed, a.seed + SEEDS)]
    found = [sum(image["source"] != "computed" for answer in run.answers for image in answer["cache"]["images"]) for run in runs]
    tokens = [sum(answer["cache"]["prefix_tokens"] for answer in run.answers) for run in runs]
    possible, n_tokens, simulated = line["images"]["possible"], sum(request["input_length"] for request in requests), [one["images"]["found"] for one in lines]
    return {"route": route, "redis": redis, "times": dataclasses.asdict(times), "possible": possible, "measured": found, "simulated": simulated,
            "difference": 100 * (statistics.mean(found) - statistics.mean(simulated)) / possible,
            "prefix_measured": [100 * n / n_tokens for n in tokens], "prefix_simulated": [100 * a.block * one["hits"] / n_tokens for one in lines],
            "requests": line.get("requests")}


def shown(values, digits=0):
    mean, low, high = (f"{x:.{digits}f}" for x in (statistics.mean(values), min(values), max(values)))
    return mean if low == high else f"{mean} ({low} to {high})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("vlcache")
    add("--routes", default="rr,image")
    add("--replicas", type=int, default=2)
    add("--clients", type=int, default=4)
    add("--cache-ram", default="24MB")
    add("--cache-prefixes", default="off", choices=["off", "auto", "always"])
    add("--runs", type=int, default=1)
    add("--within", type=float, help="points")
    add("--json", type=pathlib.Path)
    picture_trace.add_flags(parser)
    a = parser.parse_args()
    if a.image_tokens != picture_trace.IMAGE_TOKENS or a.pages > len(PAGES):
        parser.error(f"tinydoc has {len(PAGES)} pages of {picture_trace.IMAGE_TOKENS} tokens")
    requests, figures = make_requests(a), []
    print(f"{len(requests)} requests, {len({i['id'] for r in requests for i in r['images']})} pages\n")
    print("| route | Redis | could be found | measured | % | simulated | % | points apart | of prompts in prefixes, %: measured | simulated | encoder cost | spread | write rate |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(prefix="vlcache-replicas-") as name:
        folder = pathlib.Path(name)
        trace = folder / "trace.jsonl"
        trace.write_text("".join(json.dumps({k: v for k, v in r.items() if k != "body"}) + "\n" for r in requests))
        for route in a.routes.split(","):
            for redis in (False, True):
                f = compare(a, trace, requests, route, redis, folder)
                figures.append(f)
                share, times = 100 / f["possible"], f["times"]
                print(f"| {route} | {'yes' if redis else 'no'} | {f['possible']} | {shown(f['measured'])} | {share * statistics.mean(f['measured']):.1f} | {shown(f['simulated'])} | "
                      f"{share * statistics.mean(f['simulated']):.1f} | {f['difference']:+.1f} | {shown(f['prefix_measured'], 1)} | {shown(f['prefix_simulated'], 1)} | "
                      f"{times['encoder_cost']:.2f} | {times['spread']} | {times['write_rate'] if redis else ''} |", flush=True)
    if a.json:
        a.json.write_text("".join(json.dumps(f) + "\n" for f in figures))
    apart = [f for f in figures if a.within is not None and abs(f["difference"]) > a.within]
    sys.exit(f"more than {a.within} points apart: {', '.join(f['route'] + (' with Redis' if f['redis'] else '') for f in apart)}" if apart else 0)


if __name__ == "__main__":
    main()
