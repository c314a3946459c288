"""Harnesses that measure models: lm-eval scores the choices of a question by their log probabilities, lmms-eval has questions about images answered."""
import json
import os
import re
import struct
import sys

from .command_lines import CommandLine
from .common import MODEL, PAGE, QUESTION, RIGHT, URL, check

FOLDER = os.environ.get("CLIENTS_FOLDER", "")
CHOICES = [" Paris", " a kind of bread", " 42", " the river"]  # in another order for every question
QUESTIONS = ["What is the capital of France?", "What does one eat?", "How much is six times seven?", "What flows to the sea?", "Where is the tower?"]
TASK = """task: local_choices
dataset_path: json
dataset_kwargs: {data_files: {test: questions.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_choice: "{{choices}}"
target_delimiter: ""
doc_to_target: answer
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
PICTURES = """task: local_pictures
dataset_path: json
dataset_kwargs: {data_files: {test: pictures.jsonl}}
test_split: test
output_type: generate_until
doc_to_visual: !function local_pictures.visual
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {max_new_tokens: 24, temperature: 0, until: []}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true, ignore_case: true, ignore_punctuation: false}]
"""


def rotated(i):
    return CHOICES[i % len(CHOICES):] + CHOICES[:i % len(CHOICES)]


def read_logits(path):
    """(token ids, rows of logits) of a safetensors file that `vlcache logits` wrote."""
    import numpy
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    def tensor(name, kind):
        begin, end = header[name]["data_offsets"]
        return numpy.frombuffer(data[begin:end], kind).reshape(header[name]["shape"])
    return tensor("token_ids", "<i4").tolist(), tensor("logits", "<f4").astype("f8")


class LmEval(CommandLine):
    CASES = ("choices", "choices_kv")

    def __init__(self):
        super().__init__()
        (self.folder / "local_choices.yaml").write_text(TASK)
        (self.folder / "questions.jsonl").write_text("".join(json.dumps({"question": q, "choices": rotated(i), "answer": 0}) + "\n" for i, q in enumerate(QUESTIONS)))

    def scores(self, url):
        """[[(sum of log probabilities, whether all are the likeliest) of a choice] of a question], as lm-eval logs them."""
        self.run("lm_eval", "--model", "local-completions", "--model_args", f"model={MODEL},base_url={url}/v1/completions,tokenizer={FOLDER},tokenizer_backend=huggingface,num_concurrent=1,max_retries=1",
                 "--tasks", "local_choices", "--include_path", ".", "--output_path", "out", "--log_samples", HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", OPENAI_API_KEY="none")
        (samples,) = self.folder.glob("out/**/samples_*.jsonl")
        lines = sorted((json.loads(line) for line in samples.read_text().splitlines()), key=lambda s: s["doc_id"])
        samples.unlink()
        return [[(float(r[0][0]), str(r[0][1]) == "True") for r in line["resps"]] for line in lines]

    def own(self):
        """The same by `vlcache logits` of the tokens that lm-eval sends."""
        import numpy
        from transformers import AutoTokenizer
        tokenizer, program, out = AutoTokenizer.from_pretrained(FOLDER), os.environ["CLIENTS_VLCACHE"], self.folder / "logits.safetensors"
        encode = lambda text: tokenizer.encode(text, add_special_tokens=False)
        scores = []
        for question in QUESTIONS:
            before = f"Question: {question}\nAnswer:"
            n = len(encode(before))
            scores.append([])
            for choice in rotated(len(scores) - 1):
                self.run(program, "logits", "-m", FOLDER, "--dtype", "f32", "-o", out, "--tokens", ",".join(map(str, encode(before + choice))))
                ids, logits = read_logits(out)
                logits -= logits.max(axis=1, keepdims=True)
                logits -= numpy.log(numpy.exp(logits).sum(axis=1, keepdims=True))
                told = range(n, len(ids))
                scores[-1].append((sum(logits[i - 1, ids[i]] for i in told), all(logits[i - 1].argmax() == ids[i] for i in told)))
        return scores

    def choices(self):
        theirs, ours = self.scores(URL), self.own()
        worst = max(abs(a[0] - b[0]) for q, r in zip(theirs, ours) for a, b in zip(q, r))
        best = lambda scores: [max(range(len(q)), key=lambda i: q[i][0]) for q in scores]
        return check(worst < 1e-3 and best(theirs) == best(ours), f"difference {worst:.1e}, choices {best(theirs)} and {best(ours)}")

    def choices_kv(self):
        """On a server whose policy evicts, as lm-eval sends no fields of its own with these requests."""
        sys.path.append(os.environ["CLIENTS_TESTS"])
        from server import ServerProcess
        program = os.environ["CLIENTS_VLCACHE"]
        after = ["--score-after", "Answer:"] if "--score-after" in self.run(program, "serve", "--help-all") else []
        server = ServerProcess([program, "serve", "-m", FOLDER, "--port", "0", "--dtype", "f32", "--kv", "streaming", "--kv-budget", "0.3", *after]).ready()
        try:
            evicted, full = self.scores(f"http://127.0.0.1:{server.port}"), self.scores(URL)
        finally:
            server.kill()
        worst = max(abs(a[0] - b[0]) for q, r in zip(evicted, full) for a, b in zip(q, r))
        return check(all(score < 0 for q in evicted for score, _ in q) and bool(after) == (worst > 1e-3), f"difference to the full cache {worst:.1e}{', scored as answers' if after else ''}")


class LmmsEval(CommandLine):
    CASES = ("page",)

    def page(self):
        (self.folder / "local_pictures.yaml").write_text(PICTURES)
        (self.folder / "local_pictures.py").write_text('from PIL import Image\n\n\ndef visual(doc):\n    return [Image.open(doc["image"]).convert("RGB")]\n')
        questions = [(QUESTION, f"TOTAL: {RIGHT}")] * 2
        (self.folder / "pictures.jsonl").write_text("".join(json.dumps({"question": q, "answer": a, "image": PAGE}) + "\n" for q, a in questions))
        said = self.run("lmms-eval", "--model", os.environ.get("CLIENTS_LMMS_MODEL", "openai"), "--model_args", f"model_version={MODEL},base_url={URL}/v1,api_key=none", "--tasks", "local_pictures", "--include_path", ".", "--batch_size", 1,
                        "--output_path", "out", HF_HUB_OFFLINE="1", OPENAI_API_KEY="none", OPENAI_API_BASE=URL + "/v1", OPENAI_BASE_URL=URL + "/v1", OPENAI_API_URL=URL + "/v1")
        found = re.search(r"exact_match\s*\|[^|]*\|\s*([0-9.]+)", said)
        return check(found is not None and float(found.group(1)) == 1, said[-300:])
