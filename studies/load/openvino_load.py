#!/usr/bin/env python3
"""The load of load.py on OpenVINO's ContinuousBatchingPipeline, which has no server of its own: the same token ids in the same order, a closed loop.

    python studies/load/openvino_load.py --model DIR --requests 64 --concurrency 8 --prompt-tokens 2000 --max-tokens 128 [--prefix-cache]

Wants openvino-genai and a model that it can load (peers: setup.sh). Prints what load.py prints; there is no network in it."""
import argparse
import json
import os
import sys
import time

os.environ.setdefault("OPENVINO_TELEMETRY", "0")
import numpy as np
import openvino as ov
import openvino_genai

from load import make_requests, summary


def drive(pipe, args, requests):
    """[what a client would see], as load.py has it"""
    found, running, waiting = [None] * len(requests), {}, list(range(len(requests)))[::-1]
    while waiting or running:
        while waiting and len(running) < args.concurrency:
            i = waiting.pop()
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens, config.ignore_eos, config.do_sample = args.max_tokens, True, False
            found[i] = dict(start=time.monotonic(), events=[], text="", error=None)
            running[i] = pipe.add_request(i, ov.Tensor(np.array([requests[i]["prompt"]], np.int64)), config)
        pipe.step()
        now = time.monotonic()
        for i, handle in list(running.items()):
            while handle.can_read():
                handle.read()
                found[i]["events"].append(now)
            if handle.get_status() != openvino_genai.GenerationStatus.RUNNING:
                n = len(found[i]["events"])
                found[i] |= dict(end=now, usage=dict(prompt_tokens=len(requests[i]["prompt"]), completion_tokens=n))
                if n != args.max_tokens:
                    found[i]["error"] = f"{n} tokens instead of {args.max_tokens}"
                del running[i]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--shared", type=int, default=0)
    parser.add_argument("--share", type=float, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first-id", type=int, default=300)
    parser.add_argument("--last-id", type=int, default=30000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=2048, help="tokens of a step at most")
    parser.add_argument("--cache-gb", type=int, default=4)
    parser.add_argument("--prefix-cache", action="store_true")
    args = parser.parse_args()
    wanted = argparse.Namespace(**(vars(args) | dict(images=None, model="any", extra="{}", slo_ttft=float("inf"), slo_itl=float("inf"))))
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_batched_tokens, scheduler.cache_size, scheduler.dynamic_split_fuse = args.batch, args.cache_gb, True
    scheduler.max_num_seqs, scheduler.enable_prefix_caching = args.concurrency, args.prefix_cache
    properties = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": args.threads, "NUM_STREAMS": 1, "KV_CACHE_PRECISION": "bf16", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    pipe = openvino_genai.ContinuousBatchingPipeline(args.model, scheduler, "CPU", properties)
    found = drive(pipe, wanted, [body for _, body in make_requests(wanted)])
    print(json.dumps(summary(wanted, found), indent=1))
    for error in sorted({f["error"] for f in found if f["error"]}):
        print("failed:", error)
    sys.exit(any(f["error"] for f in found))


if __name__ == "__main__":
    main()
