"""The questions to every program, and the test of a right answer. A model that sees no images is asked in words, and may answer any."""
import base64
import json
import os
import pathlib

URL, MODEL, PAGE = (os.environ.get("CLIENTS_" + name, "") for name in ("URL", "MODEL", "PAGE"))  # PAGE: a PNG, or nothing for a model of text
SEES = bool(PAGE)
QUESTION, RIGHT = "What is the TOTAL?", "435.75"
DATA = base64.b64encode(pathlib.Path(PAGE).read_bytes()).decode() if SEES else ""
DATA_URI = f"data:image/png;base64,{DATA}"
PARTS = ([{"type": "image_url", "image_url": {"url": DATA_URI}}] if SEES else []) + [{"type": "text", "text": QUESTION}]
ANTHROPIC_PARTS = ([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}] if SEES else []) + [{"type": "text", "text": QUESTION}]
CLICK = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 100}}, "required": ["x"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "click", "description": "Clicks at x.", "parameters": CLICK}}
LIMIT = 300 if SEES else 64  # words of a small model of text are not judged


def check(truth, detail):
    assert truth, detail
    return str(detail)[:80]


def right(text):
    return check(RIGHT in (text or "") if SEES else isinstance(text, (str, type(None))), text)


def click(name, arguments):
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    return check(name == "click" and 0 <= arguments["x"] <= 100, (name, arguments))
