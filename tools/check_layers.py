#!/usr/bin/env python3
"""Fails when a source file includes what its layer may not see. docs/design.md describes the layers."""
import pathlib
import re
import sys

# folder -> folders it may include, besides itself; the longest matching folder counts
MAY_INCLUDE = {
    "base": set(),
    "io": {"base"},
    "video_helper": set(),  # a program of its own
    "ops": {"base"},
    "ops/ref": {"base", "ops"},
    "ops/cpu": {"base", "ops"},
    "model": {"base", "io", "ops"},
    "cache": {"base", "ops"},
    "policy": {"base", "ops"},
    "store": {"base"},
    "reuse": {"base", "ops", "cache", "policy", "store"},
    "grammar": {"base", "io"},
    "engine": {"base", "io", "ops", "model", "cache", "policy", "store", "reuse"},
    "api": {"base", "io", "ops", "model", "cache", "policy", "store", "reuse", "grammar", "engine"},
    "analysis": {"base", "io", "ops", "model", "cache", "policy", "store", "reuse", "engine", "api"},
    "server": {"base", "io", "ops", "model", "cache", "policy", "store", "reuse", "grammar", "engine", "api", "analysis"},
    "cli": {"base", "io", "ops", "model", "cache", "policy", "store", "reuse", "grammar", "engine", "api", "analysis", "server"},
}
# Folders of a layer -> the folders of the same layer that it may include; "" stands for the files of the layer's own folder.
# Tests may include all of their layer.
ROOMS = {
    "base": {
        "": set(),
        "contracts": {""},
        "os": {""},
        "numeric": {"", "os"},
    },
    "ops/cpu": {  # a circle: the root has what kernels share (SIMD, packing) and their caller, the backend
        "quant": {""},
        "matmul": {"", "quant"},
        "attention": {""},
        "limits": {"", "quant"},
        "": {"attention", "limits", "matmul", "quant"},
    },
    "model": {  # a circle: the root has contracts (config, family) and the assembly (model)
        "processors": {"images"},
        "weights": {""},
        "images": {"", "processors"},
        "families": {"", "images", "processors"},
        "": {"families", "images", "weights"},
    },
    "store": {
        "": set(),
        "disk": {""},
        "redis": {""},
    },
    "reuse": {
        "": set(),
        "prefix": {""},
        "image": {""},
        "choose": set(),
        "evidence": {"choose"},
        "simulate": {"", "choose", "prefix"},
    },
    "engine": {
        "sampling": set(),
        "hooks": set(),
        "prompt": {"hooks"},
        "sequence": {"hooks", "prompt"},
        "": {"sampling", "hooks", "prompt", "sequence"},
        "reuse": {"", "hooks", "prompt", "sequence"},
        "scheduler": {"", "sampling", "hooks", "prompt", "sequence", "reuse"},
    },
    "api": {
        "": set(),
        "messages": {""},
    },
    "server": {
        "http": set(),
        "page": {"http"},
        "protocol": {"http"},
        "operations": {"http", "protocol"},
        "": {"http", "page", "protocol", "operations"},
    },
    "cli": {
        "terminal": set(),
        "flags": {"terminal"},
        "bench": {"flags", "terminal"},
        "commands": {"flags", "terminal"},
        "": {"flags"},
    },
}
# Rooms that see fewer layers than the rest of their layer.
MAY_INCLUDE["server/http"] = {"base"}
# Headers that no file outside their layer may include.
PRIVATE = ("engine/engine_caches.h", "engine/kv_caches.h")
# Backends see the contract, not each other; only the factory sees all of them.
BACKENDS = ("ops/ref/", "ops/cpu/", "ops/cuda/")
FACTORY = ("ops/factory.cc",)


def layer_with_rooms(path):
    return max((layer for layer in ROOMS if path.startswith(layer + "/")), key=len, default=None)


def room_of(path, layer):
    inside = path[len(layer) + 1:]
    return inside.split("/")[0] if "/" in inside else ""


def layer_of(path):
    folders = [f for f in MAY_INCLUDE if path.startswith(f + "/")]
    return max(folders, key=len) if folders else None


def problems(root):
    for file in sorted([*root.rglob("*.h"), *root.rglob("*.cc")]):
        name = file.relative_to(root).as_posix()
        layer = layer_of(name)
        if layer is None:
            yield f"{name}: no layer is defined for this folder (tools/check_layers.py, docs/design.md)"
            continue
        is_test = name.endswith("_test.cc")
        for number, line in enumerate(file.read_text().splitlines(), 1):
            match = re.match(r'\s*#include "([^"]+)"', line)
            if not match:
                continue
            target = match[1]
            if is_test and target in ("tests/testing.h", "tests/fixture_cases.h"):
                continue
            if not (root / target).exists():
                yield f'{name}:{number}: "{target}" is not a file below src/'
                continue
            to = layer_of(target).split("/")[0]
            own = layer.split("/")[0]
            if to != own and to not in MAY_INCLUDE[layer] and not (is_test and to == "ops"):
                yield f"{name}:{number}: {layer} must not include {target}"
            if target in PRIVATE and to != own:
                yield f"{name}:{number}: only {to}/ may include {target}"
            whole = layer_with_rooms(name)
            if whole and whole == layer_with_rooms(target) and not is_test and "_testing" not in name and "_fuzz" not in name:
                room, other = room_of(name, whole), room_of(target, whole)
                if room not in ROOMS[whole]:
                    yield f"{name}: {whole}/{room} is not a folder of this layer (tools/check_layers.py, docs/design.md)"
                elif other != room and other not in ROOMS[whole][room]:
                    yield f"{name}:{number}: {whole}/{room} must not include {target}"
            for backend in BACKENDS:
                inside = name.startswith(backend) or name in FACTORY or is_test
                if target.startswith(backend) and not inside and target != backend + backend.split("/")[1] + "_options.h":
                    yield f"{name}:{number}: only the factory may include {target}"


if __name__ == "__main__":
    found = list(problems(pathlib.Path(__file__).resolve().parent.parent / "src"))
    print("\n".join(found) if found else "ok: include layers")
    sys.exit(bool(found))
