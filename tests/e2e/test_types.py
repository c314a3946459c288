"""Bodies of every endpoint, each field in turn replaced by values of other types."""
import base64
import copy

from test_abuse import png
from test_server import Server

IMAGE = base64.b64encode(png(32, 32)).decode()
URL = "data:image/png;base64," + IMAGE
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA}

CHAT = {
    "model": "m", "max_tokens": 1, "n": 1, "seed": 1, "stop": ["x"], "logprobs": True, "top_logprobs": 1, "logit_bias": {"1": 1}, "stream": False, "cache_salt": "s",
    "chat_template_kwargs": {"a": 1}, "mm_processor_kwargs": {"max_pixels": 1024},
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "t"}, {"type": "image_url", "uuid": "u", "image_url": {"url": URL, "detail": "low"}}]},
        {"role": "assistant", "reasoning_content": "r", "content": [{"type": "thinking", "thinking": [{"type": "text", "text": "t"}]}, {"type": "refusal", "refusal": "r"}], "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "name": "f", "content": [{"type": "text", "text": "x"}]},
        {"role": "user", "content": "q"},
    ],
}
QUESTION = {"max_tokens": 1, "messages": [{"role": "user", "content": "q"}]}
FORMAT = {**QUESTION, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}
TOOLS = {**QUESTION, "tools": [{"type": "function", "function": FUNCTION}], "tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": True}
COMPLETION = {"prompt": ["x"], "max_tokens": 1, "echo": True, "logprobs": 1, "n": 1, "best_of": 1, "suffix": "", "stop": "x", "stream": False}
RESPONSE = {
    "max_output_tokens": 1, "instructions": "i", "store": False, "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}}, "metadata": {"a": "b"},
    "tools": [{"type": "function", **FUNCTION}, {"type": "custom", "name": "g", "description": "d", "format": {"type": "grammar", "definition": "x", "syntax": "lark"}}, {"type": "namespace", "name": "ns", "tools": [{"type": "function", **FUNCTION}]}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "t"}, {"type": "input_image", "image_url": URL, "detail": "low"}]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "s"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "namespace": "ns"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "o"}]},
        {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "x"},
        {"type": "computer_call_output", "call_id": "d", "output": {"type": "computer_screenshot", "image_url": URL}},
        {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "mcp_approval_response", "status": "s"},
    ],
}
MESSAGES = {
    "max_tokens": 1, "system": [{"type": "text", "text": "s"}], "thinking": {"type": "disabled"}, "stop_sequences": ["x"], "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "t"}, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE}}, {"type": "document", "title": "t", "source": {"type": "content", "content": [{"type": "text", "text": "d"}]}}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, {"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "is_error": False, "content": [{"type": "text", "text": "x"}]}]},
    ],
}
ALONE = {"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "d"}]}}]}]}

BODIES = (
    ("/v1/chat/completions", CHAT), ("/v1/chat/completions", FORMAT), ("/v1/chat/completions", TOOLS), ("/v1/completions", COMPLETION), ("/v1/responses", RESPONSE), ("/v1/messages", MESSAGES), ("/v1/messages", ALONE),
    ("/v1/messages/count_tokens", ALONE), ("/tokenize", {"prompt": "x", "add_special_tokens": True}), ("/tokenize", {"messages": QUESTION["messages"]}), ("/detokenize", {"tokens": [1]}),
)
# Data that is refused in the end: what stands beside it is read before.
PDF = base64.b64encode(b"%PDF-1.4").decode()
MEDIA = (
    ("/v1/chat/completions", {"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "file", "file": {"file_data": PDF, "filename": "n"}, "vlcache": {"pages": "1", "pdf_text": True}}]}]}),
    ("/v1/chat/completions", {"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": ["data:image/png;base64,AAAA"]}, "fps": 1, "max_frames": 1}]}]}),
    ("/v1/responses", {"max_output_tokens": 1, "input": [{"role": "user", "content": [{"type": "input_file", "file_data": PDF, "filename": "n", "vlcache": {"pages": "1"}}]}]}),
    ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "document", "title": "t", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}, "vlcache": {"pages": "1"}}]}]}),
)
VALUES = (None, 1, "", [], {}, [1])


def places(value, at=()):
    if at:
        yield at
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*at, key))


def with_value(body, place, value):
    body = copy.deepcopy(body)
    within = body
    for key in place[:-1]:
        within = within[key]
    within[place[-1]] = value
    return body


class Types(Server):
    FLAGS = ("--max-tokens", "1")

    def check_every_field(self, path, body):
        for place in places(body):
            for value in VALUES:
                status, answer = self.call("POST", path, with_value(body, place, value))
                said = f"{path}: {place} = {value!r}: {answer}"
                self.assertIn(status, (200, 400, 404), said)
                self.assertNotIn("exception", str(answer), said)

    def test_every_field_as_every_type(self):
        for path, body in BODIES:
            self.check_every_field(path, body)
            self.assertEqual(self.call("POST", path, body)[0], 200, path)

    def test_fields_beside_media_as_every_type(self):
        for path, body in MEDIA:
            self.check_every_field(path, body)
            self.assertEqual(self.call("POST", path, body)[0], 400, path)
