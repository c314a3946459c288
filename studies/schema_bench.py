#!/usr/bin/env python3
"""A sample of 1,000 schemas of JSONSchemaBench (github.com/guidance-ai/jsonschemabench, MIT; its schemas come from public
repositories under their own licences, so none is kept here): how many compile, why others do not, whether texts drawn from
the grammars satisfy their schemas, and whether valid instances belong to them.

  schema_bench.py GRAMMAR_BENCH MODEL_DIR JSONSCHEMABENCH [N] [-v] [--llama CONVERTER]

JSONSCHEMABENCH is a checkout with data/ and maskbench/data/. Instances are maskbench's for a schema, else
drawn by hypothesis-jsonschema. They are written as the grammar writes: properties in the order of the schema, others after
them, and white space as json.dumps has it. Needs jsonschema, and hypothesis-jsonschema for the rest.

CONVERTER is llama.cpp's examples/json_schema_to_grammar.py (fetched, not kept here): how many of the same schemas it
converts, and, of the grammars that it writes, how many our GBNF reader compiles, how many valid instances they accept and
how many of their texts are invalid.
"""
import collections
import decimal
import copy
import glob
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import time
import warnings

import jsonschema

warnings.filterwarnings("ignore")
COMBINED = ("allOf", "anyOf", "oneOf")


def sampled(root, n):
    files = sorted(glob.glob(os.path.join(root, "data", "*", "*.json")))
    return random.Random(29).sample(files, n)


def drawn(schema, n=3):
    """Instances by hypothesis-jsonschema, [] if it cannot."""
    import hypothesis
    from hypothesis_jsonschema import from_schema
    found = []
    try:
        @hypothesis.settings(max_examples=n, database=None, deadline=None, suppress_health_check=list(hypothesis.HealthCheck),
                             phases=[hypothesis.Phase.generate])
        @hypothesis.seed(29)
        @hypothesis.given(from_schema(schema))
        def draw(value):
            found.append(value)
        draw()
    except Exception:  # what it does not support
        pass
    return found


def instances(root, path, schema):
    folder, name = path.split(os.sep)[-2:]
    of_set = os.path.join(root, "maskbench", "data", f"{folder}---{name}")
    if os.path.exists(of_set):
        with open(of_set, encoding="utf-8") as f:
            tests = json.load(f)["tests"]
        found = [t["data"] for t in tests if t["valid"]]
        if found:
            return found, "set"
    return drawn(schema), "drawn"


def multiple_of(validator, divisor, value, schema):
    """In decimal: jsonschema divides doubles, in which 0.07 is no multiple of 0.01."""
    if validator.is_type(value, "number") and decimal.Decimal(repr(value)) % decimal.Decimal(repr(divisor)) != 0:
        yield jsonschema.ValidationError(f"{value!r} is not a multiple of {divisor!r}")


class Order:
    """The order in which the properties of a value stand in its schema, references followed."""

    def __init__(self, root, validator):
        self.root, self.validator = root, validator

    def holds(self, part, value):
        try:
            return self.validator.evolve(schema=part).is_valid(value)
        except Exception:
            return True

    def parts(self, schema, value, depth=0):
        """The schemas that hold for a value beside this one, this one first."""
        if not isinstance(schema, dict) or depth > 20:
            return
        yield schema
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            at = self.root
            try:
                for part in filter(None, reference[1:].split("/")):
                    part = re.sub("%([0-9a-fA-F]{2})", lambda m: chr(int(m[1], 16)), part)
                    part = part.replace("~1", "/").replace("~0", "~")
                    at = at[int(part)] if isinstance(at, list) else at[part]
                yield from self.parts(at, value, depth + 1)
            except (KeyError, IndexError, ValueError):
                pass
        for key in COMBINED:
            for part in schema.get(key, []) if isinstance(schema.get(key), list) else []:
                if self.holds(part, value):
                    yield from self.parts(part, value, depth + 1)
        for key in ("if", "then", "else"):
            if key in schema and self.holds(schema[key], value):
                yield from self.parts(schema[key], value, depth + 1)

    def ordered(self, value, schemas):
        all_parts = [p for s in schemas for p in self.parts(s, value)]
        if isinstance(value, list):
            out = []
            for i, item in enumerate(value):
                of_item = []
                for p in all_parts:
                    items = p.get("items")
                    prefix = items if isinstance(items, list) else p.get("prefixItems", [])
                    if i < len(prefix):
                        of_item.append(prefix[i])
                    elif isinstance(items, dict):
                        of_item.append(items)
                out.append(self.ordered(item, of_item))
            return out
        if not isinstance(value, dict):
            return value
        names = [n for p in all_parts for n in p.get("properties", {})]
        names += [n for p in all_parts for n in (p["required"] if isinstance(p.get("required"), list) else [])]
        names += list(value)
        out = {}
        for name in dict.fromkeys(names):
            if name not in value:
                continue
            of_name = [p["properties"][name] for p in all_parts if name in p.get("properties", {})]
            for p in all_parts:
                for pattern, schema in p.get("patternProperties", {}).items():
                    try:
                        if re.search(pattern, name):
                            of_name.append(schema)
                    except re.error:
                        pass
                if isinstance(p.get("additionalProperties"), dict) and name not in p.get("properties", {}):
                    of_name.append(p["additionalProperties"])
            out[name] = self.ordered(value[name], of_name)
        return out


def reason(error):
    """An error without the names of the schema."""
    error = re.sub(r"at #\S*", "at #", error)
    error = re.sub(r'the pattern at character \d+: ', "pattern: ", error)
    return re.sub(r'"[^"]*\.json[^"]*"', '"..."', error)[:110]


def ask(process, **what):
    process.stdin.write(json.dumps(what) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    return json.loads(line) if line else None


def times_text(times):
    times = sorted(times)
    return f"median {times[len(times) // 2]:.1f} ms, p99 {times[len(times) * 99 // 100]:.1f} ms, most {times[-1]:.1f} ms"


def llama(converter, process, cases):
    """What llama.cpp's converter does with the same schemas."""
    spec = importlib.util.spec_from_file_location("converter", converter)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    counts, times = collections.Counter(), []
    for path, schema, validator, texts, _ in cases:
        begin = time.perf_counter()
        try:
            c = module.SchemaConverter(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)
            c.visit(c.resolve_refs(copy.deepcopy(schema), "stdin"), "")
            grammar = c.format_grammar()
        except (Exception, RecursionError):
            counts["refused"] += 1
            continue
        finally:
            times.append(1000 * (time.perf_counter() - begin))
        counts["converted"] += 1
        said = ask(process, grammar=grammar, texts=texts, samples=1)
        if said is None:
            print(f"the program ended at {path}")
            break
        if "error" in said:
            counts["of them no grammar that can be read"] += 1
            if "-v" in sys.argv:
                print("GBNF", path, said["error"][:200])
            continue
        counts["instances"] += len(texts)
        counts["instances accepted"] += sum(taken < 0 for taken in said["texts"])
        for text in filter(None, said["samples"]):
            counts["samples"] += 1
            try:
                counts["samples invalid"] += not validator.is_valid(json.loads(text))
            except ValueError:
                counts["samples invalid"] += 1
            except Exception:
                counts["samples that jsonschema cannot check"] += 1
    print(f"llama.cpp's converter: {times_text(times)} (Python)")
    for name, count in sorted(counts.items()):
        print(f"  {name}: {count}")


def main():
    bench, model, root = sys.argv[1:4]
    more = sys.argv[4:]
    converter = more.pop(more.index("--llama") + 1) if "--llama" in more else None
    n = int(next((a for a in more if not a.startswith("-")), 1000))
    cases = []
    for path in sampled(root, n):
        with open(path, encoding="utf-8") as f:
            schema = json.load(f)
        of_draft = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        validator = jsonschema.validators.extend(of_draft, {"multipleOf": multiple_of})(schema)
        valid, source = instances(root, path, schema)
        checked = []
        for v in valid:
            try:
                if validator.is_valid(v):
                    checked.append(v)
            except Exception:  # patterns that Python cannot read, references elsewhere
                pass
        order = Order(schema, validator)
        texts = [json.dumps(order.ordered(v, [schema]), ensure_ascii=False) for v in checked]
        cases.append((path, schema, validator, texts, source))
    process = subprocess.Popen([bench, model, "--schemas"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    counts, reasons, times = collections.Counter(), collections.Counter(), []
    examples = {}
    for path, schema, validator, texts, source in cases:
        said = ask(process, schema=schema, texts=texts, samples=3)
        if said is None:
            print(f"the program ended at {path}")
            return 1
        times.append(said["ms"])
        if "-v" in sys.argv and (said["ms"] > 100 or "error" in said):
            print("SLOW" if said["ms"] > 100 else "REFUSED", f"{said['ms']:.0f} ms", path, said.get("error", "")[:200])
        if "error" in said:
            counts["refused"] += 1
            reasons[reason(said["error"])] += 1
            examples.setdefault(reason(said["error"]), path)
            continue
        counts["compiled"] += 1
        for text, taken in zip(texts, said["texts"]):
            counts[f"instances ({source})"] += 1
            counts[f"accepted ({source})"] += taken < 0
            if taken >= 0 and "-v" in sys.argv:
                at = len(text.encode()[:taken].decode(errors="ignore"))
                print("NOT ACCEPTED", path, text[max(0, at - 300):at], "<HERE>", text[at:at + 60])
        for text in said["samples"]:
            if not text:
                counts["samples not finished"] += 1
                continue
            counts["samples finished"] += 1
            try:
                if not validator.is_valid(json.loads(text)):
                    counts["samples invalid"] += 1
                    error = jsonschema.exceptions.best_match(validator.iter_errors(json.loads(text)))
                    print("INVALID", path, text[:400], "|", error.message[:200])
            except ValueError:
                counts["samples invalid"] += 1
                print("NO JSON", path, text[:400])
            except Exception:
                counts["samples that jsonschema cannot check"] += 1
    print(f"{counts['compiled']} of {len(cases)} compile; time: {times_text(times)}")
    for name, count in sorted(counts.items()):
        print(f"  {name}: {count}")
    for text, count in reasons.most_common(60):
        print(f"  {count:4d}  {text}   e.g. {os.path.relpath(examples[text], root)}")
    if converter:
        llama(converter, process, cases)
    process.stdin.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
