"""Random JSON schemas of the subset that vlcache takes (src/grammar/schema_rules.h)."""
import random

NAMES = ["a", "ab", "b", "total", "date of issue", "größe", "日本", "q\"uote", "back\\slash", "tab\tname", "x/y", "~", "😀", "", "A" * 40]
VALUES = [None, True, False, 0, -3, 12, 123, 1.5, "", "a", "ab", "abc", "ü", "new\nline", "\"", [], [1, "x"], {}, {"k": [None]}]

PATTERNS = ["^[a-z]{2,5}$", "^\\d+(\\.\\d{2})?$", "ab", "^(?:x|yy)*\\s?[^a-q]$", "^\\w+@\\w+\\.com$", "^[ä-ö\"]+$", "^.{3}$"]
FORMATS = ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"]


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.defs = {}

    def root(self):
        r = self.random
        schema = self.object(3) if r.random() < 0.7 else self.schema(3)
        if schema is True:
            schema = {}
        if self.defs:
            schema["$defs"] = self.defs
        return schema

    def schema(self, depth):
        r = self.random
        kinds = ["string", "number", "integer", "boolean", "null", "enum", "const", "types", "range", "pattern"]
        if depth > 0:
            kinds += ["object"] * 4 + ["array"] * 3 + ["anyOf"] * 2 + ["ref", "list", "any"]
        kind = r.choice(kinds)
        if kind in ("string", "number", "integer", "boolean", "null"):
            return {"type": kind, **({"title": "x", "description": "y"} if r.random() < 0.2 else {})}
        if kind == "enum":
            return {"enum": r.sample(VALUES, r.randint(1, 5))}
        if kind == "const":
            return {"const": r.choice(VALUES)}
        if kind == "types":
            return {"type": r.sample(["string", "number", "integer", "boolean", "null"], r.randint(1, 3))}
        if kind == "range":
            low = r.choice([-1000, -17, -1, 0, 1, 5, 99]) + r.choice([0, 0.5])
            key, other = r.choice(["minimum", "exclusiveMinimum"]), r.choice(["maximum", "exclusiveMaximum"])
            return {"type": r.choice(["integer", "number"]), key: low, other: low + r.choice([2, 10.25, 123, 100000])}
        if kind == "pattern":
            return {"type": "string", **r.choice([{"pattern": p} for p in PATTERNS] + [{"format": f} for f in FORMATS])}
        if kind == "any":
            return r.choice([{}, True, {"type": "object"}, {"type": "array"}])
        if kind == "object":
            return self.object(depth)
        if kind == "array":
            low = r.choice([None, 0, 1, 2])
            high = r.choice([None, 2, 3, 7])
            bounds = {k: v for k, v in (("minItems", low), ("maxItems", high)) if v is not None}
            return {"type": "array", "items": self.schema(depth - 1), **bounds}
        if kind == "anyOf":
            return {"anyOf": [self.schema(depth - 1) for _ in range(r.randint(1, 3))]}
        name = f"d{len(self.defs)}"
        if kind == "list":  # refers to itself
            self.defs[name] = {}
            self.defs[name] = {"type": "object", "properties": {"v": self.schema(0), "next": {"anyOf": [{"type": "null"}, {"$ref": f"#/$defs/{name}"}]}},
                               "required": ["v", "next"], "additionalProperties": False}
        else:
            self.defs[name] = {}
            self.defs[name] = self.schema(depth - 1)
        return {"$ref": f"#/$defs/{name}"}

    def object(self, depth):
        r = self.random
        names = r.sample(NAMES, r.randint(0, 5))
        schema = {"type": "object", "properties": {name: self.schema(depth - 1) for name in names}}
        schema["required"] = [name for name in names if r.random() < 0.7]
        extra = r.random()
        if extra < 0.6:
            schema["additionalProperties"] = False
        elif extra < 0.75:
            schema["additionalProperties"] = self.schema(0)
        return schema


def random_schema(seed):
    return Maker(seed).root()
