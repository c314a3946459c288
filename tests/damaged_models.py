"""Fixture models whose JSON files or tensor headers a seed has damaged, and whether a run on one of them ended as it should.

    damaged = DamagedModel(model, seed)  # the same model and seed give the same files
    end = damaged.ask(vlcache)           # a short answer, under limits of time and memory
    end.fault                            # "" for an answer or one clear line
"""
import copy
import dataclasses
import json
import pathlib
import random
import re
import resource
import struct
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests/fixtures/models"
MAX_SECONDS, MAX_BYTES = 10, 4 << 30  # the models answer within 50 ms and 300 MiB
# How often each file is damaged, where the model has it.
FILES = {"config.json": 8, "preprocessor_config.json": 4, "processor_config.json": 4, "video_preprocessor_config.json": 1, "generation_config.json": 2,
         "tokenizer_config.json": 2, "special_tokens_map.json": 1, "model.safetensors.index.json": 1}
VALUES = [None, True, False, 0, -1, 1, 2, 3, 7, 255, 2**31 - 1, 2**31, 2**32 + 1, 2**53, 2**63, 2**64, -2**63, 10**30, 0.5, -0.0, 1e-320, 1e308, -1e308, float("nan"),
          "", "0", "16", "default", "x" * 5000, "two\nlines", "\x00\x1b[31m", "\ud800", [], {}, [[]], [0, 0, 0], [1] * 1000, [None], {"a": {}}, {"size": 1}]
DEEP = json.loads("[" * 200 + "]" * 200)
SIZES = [4096, 8192, 2**15, 2**20, 2**24 - 1, 2**24, 10**9, 2**31 - 1, 2**40]
IS_SIZE = re.compile(r"size|layers|heads|dim|positions|position_emb|depth|channels|edge|height|width|length|blocks|experts|frames|window|tokens|theta|factor|fps|pinpoints|indexes|section")
IS_DIVISOR = re.compile(r"patch|merge|scale_factor|shuffle|window|heads|head_dim|section|experts|frames|image_size|img_size|img_dim|image_seq|token_length")
IS_TOKEN = re.compile(r"token_id|token_index|_id$")


def models():
    """The folders that damaged models are made of, sorted."""
    return sorted(path.parent for path in FIXTURES.glob("*/case.json"))


class Place:
    """A value inside a file's JSON: its container, its key there, the names on the way."""

    def __init__(self, file, box, key, names):
        self.file, self.box, self.key, self.names = file, box, key, names

    def get(self):
        return self.box[self.key]

    def set(self, value):
        self.box[self.key] = value

    def remove(self):
        del self.box[self.key]


def places_in(file, value, names=()):
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        inner = names + (key,) if isinstance(key, str) else names
        yield Place(file, value, key, inner)
        yield from places_in(file, value[key], inner)


@dataclasses.dataclass
class End:
    """Of a run: its exit code (None: it was ended after MAX_SECONDS), and what is wrong with that, in a word or two."""
    returncode: int
    stderr: str
    fault: str


class DamagedModel:
    def __init__(self, model, seed):
        self.model, self.seed, self.random = model, seed, random.Random(f"{model.name} {seed}")
        self.json = {name: json.loads((model / name).read_text()) for name in FILES if (model / name).exists()}
        self.bytes = {}      # of files that are no JSON any more, or never were
        self.changes = []    # what was done, in words
        self.names = set()   # the keys and files concerned
        for _ in range(self.random.choice([1, 1, 1, 2, 3])):
            while not self.random.choices(list(DAMAGE), list(DAMAGE.values()))[0](self):
                pass

    def __str__(self):
        return f"{self.model.name}:{self.seed} {'; '.join(self.changes)}"

    def write(self, folder):
        for path in self.model.iterdir():
            if path.name not in self.json and path.name not in self.bytes:
                (folder / path.name).symlink_to(path)
        for name, value in self.json.items():
            if name not in self.bytes:
                (folder / name).write_text(json.dumps(value))
        for name, data in self.bytes.items():
            (folder / name).write_bytes(data)

    def ask(self, vlcache):
        with tempfile.TemporaryDirectory(prefix="vlcache-damaged-") as folder:
            self.write(pathlib.Path(folder))
            image = self.model / "image-0.png"
            command = [vlcache, "run", "-m", folder, *(["-i", image] if image.exists() else []), "--kv-memory", "0.1", "--max-tokens", "2", "hi"]
            try:
                p = subprocess.run(command, capture_output=True, timeout=MAX_SECONDS, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES)))
            except subprocess.TimeoutExpired:
                return End(None, "", "timeout")
            stderr = p.stderr.decode(errors="replace").replace(folder, "DIR")
            return End(p.returncode, stderr, fault_of(p.returncode, p.stdout, stderr, self.names))

    def say(self, file, names, text):
        self.names |= {file, *names}
        self.changes.append(f"{file} {'.'.join(names)} {text}")
        return True

    def file(self):
        names = [name for name in self.json if name not in self.bytes]
        return self.random.choices(names, [FILES[name] for name in names])[0] if names else None

    def place(self, wanted=lambda place: True):
        """Of one file, at random; None: it has no such place."""
        file = self.file()
        found = [place for place in places_in(file, self.json[file]) if wanted(place)] if file else []
        return self.random.choice(found) if found else None


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def named(pattern):
    return lambda place: place.names and pattern.search(place.names[-1]) and is_number(place.get())


def any_value(d):
    place = d.place()
    if not place:
        return False
    value = copy.deepcopy(d.random.choice(VALUES + [DEEP]))
    place.set(value)
    return d.say(place.file, place.names, f"= {json.dumps(value)[:60]}")


def missing(d):
    place = d.place()
    if not place:
        return False
    place.remove()
    return d.say(place.file, place.names, "removed")


def new_number(d, place, value):
    place.set(value)
    return d.say(place.file, place.names, f"= {value}")


def other_number(d):
    place = d.place(lambda place: is_number(place.get()))
    if not place:
        return False
    n = place.get()
    return new_number(d, place, d.random.choice([n + 1, n - 1, 2 * n, n // 2, -n, n / 3, 1000 * n, str(n), [n], 0]))


def absurd_size(d):
    place = d.place(named(IS_SIZE))
    return bool(place) and new_number(d, place, d.random.choice(SIZES))


def no_divisor(d):
    place = d.place(named(IS_DIVISOR))
    return bool(place) and new_number(d, place, d.random.randint(1, 33))


def other_token(d):
    place = d.place(named(IS_TOKEN))
    return bool(place) and new_number(d, place, d.random.choice([0, 1, 2, 5, 6, 7, 100, 383, 384, 385, 10**6, -1, -7, 2**31]))


def other_list(d):
    place = d.place(lambda place: isinstance(place.get(), list))
    if not place:
        return False
    values = list(place.get())
    kind = d.random.randrange(5)
    if kind == 0 or not values:
        values.append(copy.deepcopy(values[0]) if values else 1)
    elif kind == 1:
        values.pop()
    elif kind == 2:
        d.random.shuffle(values)
    elif kind == 3:
        values *= d.random.choice([2, 100, 3000])
    else:
        values[d.random.randrange(len(values))] = copy.deepcopy(d.random.choice(VALUES))
    place.set(values)
    return d.say(place.file, place.names, f"= {json.dumps(values)[:60]}")


def other_family(d):
    """The model_type of another fixture, of the whole model or of a part."""
    place = d.place(lambda place: place.names[-1:] in (("model_type",), ("processor_class",), ("image_processor_type",), ("video_processor_type",), ("architectures",)))
    if not place:
        return False
    other = [p.get() for model in models() for p in places_in("", json_of(model, place.file)) if p.names == place.names and isinstance(p.key, str)]
    place.set(copy.deepcopy(d.random.choice(other)))
    return d.say(place.file, place.names, f"= {json.dumps(place.get())}")


def json_of(model, name):
    path = model / name
    return json.loads(path.read_text()) if path.exists() else {}


def another_models_part(d):
    """A whole object, or a whole file, of another fixture."""
    file, other = d.file(), d.random.choice(models())
    theirs = json_of(other, file) if file else {}
    if not theirs:
        return False
    shared = [key for key, value in theirs.items() if isinstance(value, dict)]
    if not shared or d.random.random() < 0.3:
        d.json[file] = theirs
        return d.say(file, [], f"of {other.name}")
    if not isinstance(d.json[file], dict):
        return False
    key = d.random.choice(shared)
    d.json[file][key] = theirs[key]
    return d.say(file, [key], f"of {other.name}")


def exchanged(d):
    """Two values of an object change places."""
    place = d.place(lambda place: isinstance(place.get(), dict) and len(place.get()) > 1)
    if not place:
        return False
    box = place.get()
    a, b = d.random.sample(list(box), 2)
    box[a], box[b] = box[b], box[a]
    return d.say(place.file, (*place.names, a, b), "exchanged")


def hoisted(d):
    """An object's keys move to the object around it, or the object into a list."""
    place = d.place(lambda place: isinstance(place.get(), dict) and isinstance(place.box, dict))
    if not place:
        return False
    inner = place.get()
    if d.random.random() < 0.3:
        place.set([inner])
    else:
        place.remove()
        place.box.update(inner)
    return d.say(place.file, place.names, "hoisted")


def whole_file(d):
    file = d.file()
    if not file:
        return False
    d.json[file] = copy.deepcopy(d.random.choice(VALUES + [DEEP]))
    return d.say(file, [], f"is {json.dumps(d.json[file])[:60]}")


def no_file(d):
    file = d.file()
    if not file:
        return False
    del d.json[file]
    d.bytes[file] = b""
    return d.say(file, [], "is empty")


def key_twice(d):
    place = d.place(lambda place: isinstance(place.box, dict) and place.names)
    if not place:
        return False
    text = json.dumps(d.json[place.file])
    key = json.dumps(place.key) + ": "
    value = json.dumps(d.random.choice(VALUES))
    d.bytes[place.file] = text.replace(key, f"{key}{value}, {key}", 1).encode()
    return d.say(place.file, place.names, f"twice, first {value[:60]}")


def other_bytes(d):
    file = d.file()
    if not file:
        return False
    data = bytearray(json.dumps(d.json[file], indent=2).encode())
    at = d.random.randrange(len(data))
    kind = d.random.randrange(5)
    if kind == 0:
        data = data[:at]
    elif kind == 1:
        data[at] = d.random.randrange(256)
    elif kind == 2:
        data[at:at] = d.random.choice([b"\xef\xbb\xbf", b"\xff\xfe", b"[" * 100000, b"{\"a\":" * 300, b"/* */", b"\x00", b",", b"1e999999", b"\"\\ud800\""])
    elif kind == 3:
        data = b"\xef\xbb\xbf" + data
    else:
        data = data + data
    d.bytes[file] = bytes(data)
    return d.say(file, [], f"bytes at {at}, {kind}")


def other_tensors(d):
    """The header of the weights: a tensor turned, flat, renamed, missing, of another type or shape; the data stay."""
    file = d.random.choice(sorted(path.name for path in d.model.glob("*.safetensors") if path.name.startswith("model")))
    data = d.bytes.get(file) or (d.model / file).read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])
    name = d.random.choice([name for name in header if name != "__metadata__"])
    tensor = header[name]
    kind = d.random.choice(["turned", "flat", "longer", "renamed", "missing", "dtype", "empty", "huge", "value"])
    if kind == "turned":
        tensor["shape"].reverse()
    elif kind == "flat":
        size = 1
        for extent in tensor["shape"]:
            size *= extent
        tensor["shape"] = [size]
    elif kind == "longer":
        tensor["shape"].append(1)
    elif kind == "renamed":
        header[name.replace("layers.0", "layers.9") if "layers.0" in name else name[1:]] = header.pop(name)
    elif kind == "missing":
        del header[name]
    elif kind == "dtype":
        tensor["dtype"] = d.random.choice(["F32", "F16", "BF16", "F64", "I8", "F8_E4M3", "Q4", ""])
    elif kind == "empty":
        tensor["shape"][0] = 0
    elif kind == "huge":
        tensor["shape"][-1] = d.random.choice([2**31, 2**62, 2**63])
    else:
        key = d.random.choice(list(tensor))
        tensor[key] = d.random.choice(VALUES)
    text = json.dumps(header).encode()
    d.bytes[file] = struct.pack("<Q", len(text)) + text + data[8 + n:]
    return d.say(file, [name], kind)


DAMAGE = {any_value: 16, missing: 8, other_number: 8, absurd_size: 14, no_divisor: 12, other_token: 4, other_list: 6, other_family: 5, another_models_part: 6, exchanged: 4, hoisted: 3,
          whole_file: 1, no_file: 1, key_twice: 2, other_bytes: 4, other_tensors: 6}


# What an error may name beside the keys that were damaged.
NAMED = re.compile(r"\w\.(json|safetensors|jinja)\b|chat template|takes text only|the prompt has \d+ tokens")


def fault_of(returncode, stdout, stderr, names):
    """"" for an answer, or for exit code 2 with one line that names a file or a key."""
    if returncode == 0:
        return ""
    if returncode != 2:
        return f"exit code {returncode}"
    lines = stderr.rstrip("\n").split("\n")
    if len(lines) != 1:
        return "several lines"
    if stdout:
        return "an answer and an error"
    if not lines[0].isprintable():
        return "control characters"
    if len(lines[0]) > 600:
        return "long line"
    if re.search("out of memory|bad_alloc|std::", lines[0]):
        return "memory"
    if not NAMED.search(lines[0]) and not any(name in lines[0] for name in names):
        return "names neither file nor key"
    return ""
