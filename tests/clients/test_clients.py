"""The official Python clients of OpenAI and Anthropic against `vlcache serve`: streams, images, tools, schemas, errors, clients that leave."""
import base64
import json
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/e2e"))
from program import PAGE  # noqa: E402
from test_answer_forms import RandomServer  # noqa: E402
from test_server import QUESTION, Server  # noqa: E402

try:
    import anthropic
    import openai
    WHY_NOT = ""
except ImportError:
    WHY_NOT = "there are no clients (tools/install_deps.sh)"

ANSWER = " TOTAL: 435.75"
DATA = base64.b64encode(PAGE.read_bytes()).decode()
URL = f"data:image/png;base64,{DATA}"
CHAT_IMAGE = {"type": "image_url", "image_url": {"url": URL}}
INPUT_IMAGE = {"type": "input_image", "image_url": URL, "detail": "auto"}
BLOCK_IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}
SCHEMAS = {
    "click": {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 1280}, "y": {"type": "integer", "minimum": 0, "maximum": 800}}, "required": ["x", "y"], "additionalProperties": False},
    "press": {"type": "object", "properties": {"key": {"enum": ["Enter", "Escape", "Tab"]}}, "required": ["key"], "additionalProperties": False},
    "look": {"type": "object", "properties": {}, "additionalProperties": False},
}
STEPS, WITH_IMAGE = 20, (7, 15)  # of a loop; steps whose results are images


class Clients:
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        base = f"http://127.0.0.1:{cls.port}"
        cls.openai = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0)
        cls.anthropic = anthropic.Anthropic(base_url=base, api_key="none", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.openai.close()
        cls.anthropic.close()
        super().tearDownClass()


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Pages(Clients, Server):
    def chat(self, **more):
        return self.openai.chat.completions.create(model="any", messages=[{"role": "user", "content": [CHAT_IMAGE, {"type": "text", "text": QUESTION}]}], temperature=0, max_tokens=24, **more)

    def responses(self, **more):
        return self.openai.responses.create(model="any", input=[{"role": "user", "content": [INPUT_IMAGE, {"type": "input_text", "text": QUESTION}]}], **{"temperature": 0, "max_output_tokens": 24, **more})

    def message(self, **more):
        return dict(model="any", max_tokens=24, extra_body={"temperature": 0}, messages=[{"role": "user", "content": [BLOCK_IMAGE, {"type": "text", "text": QUESTION}]}]) | more

    def test_chat_completions(self):
        answer = self.chat()
        self.assertEqual((answer.choices[0].message.content, answer.choices[0].finish_reason), (ANSWER, "stop"))
        *chunks, last = list(self.chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks), ANSWER)
        self.assertEqual(last.usage.prompt_tokens, answer.usage.prompt_tokens)
        self.assertEqual(last.usage.prompt_tokens_details.cached_tokens, answer.usage.prompt_tokens - 1)

    def test_models(self):
        for client in (self.openai, self.anthropic):
            model, = client.models.list()
            self.assertEqual((model.id, client.models.retrieve("tinydoc").id), ("tinydoc", "tinydoc"))
        self.assertGreater(model.max_model_len, 256)
        for name in ("other", "tinydoc/x", "%00"):
            with self.assertRaises(openai.NotFoundError):
                self.openai.models.retrieve(name)

    def test_responses(self):
        answer = self.responses()
        self.assertEqual((answer.output_text, answer.status, answer.output[0].type), (ANSWER, "completed", "message"))
        self.assertEqual(answer.usage.output_tokens, len(self.chat(logprobs=True).choices[0].logprobs.content))
        events = list(self.responses(stream=True))
        self.assertEqual([e.sequence_number for e in events], list(range(len(events))))
        self.assertEqual("".join(e.delta for e in events if e.type == "response.output_text.delta"), ANSWER)
        self.assertEqual(events[0].type, "response.created")
        self.assertEqual((events[-1].type, events[-1].response.output_text), ("response.completed", ANSWER))
        self.assertGreater(events[-1].response.usage.input_tokens_details.cached_tokens, 200)
        cut = self.responses(max_output_tokens=2)
        self.assertEqual((cut.status, cut.incomplete_details.reason), ("incomplete", "max_output_tokens"))
        with self.openai.responses.stream(model="any", input="Hello", max_output_tokens=4) as stream:
            self.assertEqual(len(stream.get_final_response().output), 1)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.responses(previous_response_id="resp_1")
        self.assertEqual(caught.exception.param, "previous_response_id")

    def test_messages(self):
        answer = self.anthropic.messages.create(**self.message())
        self.assertEqual((answer.content[0].text, answer.stop_reason, answer.role), (ANSWER, "end_turn", "assistant"))
        n_prompt = self.anthropic.messages.count_tokens(model="any", messages=self.message()["messages"]).input_tokens
        self.assertEqual(answer.usage.input_tokens + answer.usage.cache_read_input_tokens, n_prompt)
        with self.anthropic.messages.stream(**self.message()) as stream:
            self.assertEqual("".join(stream.text_stream), ANSWER)
            final = stream.get_final_message()
        self.assertEqual((final.content[0].text, final.stop_reason), (ANSWER, "end_turn"))
        self.assertEqual(final.usage.cache_read_input_tokens, n_prompt - 1)
        self.assertEqual(self.anthropic.messages.create(**self.message(max_tokens=2)).stop_reason, "max_tokens")
        stopped = self.anthropic.messages.create(**self.message(stop_sequences=["435", "zzz"]))
        self.assertEqual((stopped.stop_reason, stopped.stop_sequence, stopped.content[0].text), ("stop_sequence", "435", " TOTAL: "))
        system = self.anthropic.messages.create(**self.message(system=[{"type": "text", "text": ""}]))
        self.assertEqual(system.content[0].text, ANSWER)

    def test_uploaded_files(self):
        question = {"type": "text", "text": QUESTION}
        for purpose in ("vision", "user_data"):
            made = self.openai.files.create(file=PAGE, purpose=purpose, expires_after={"anchor": "created_at", "seconds": 3600})
            self.assertEqual((made.object, made.filename, made.bytes, made.purpose, made.expires_at - made.created_at), ("file", PAGE.name, PAGE.stat().st_size, purpose, 3600))
        self.assertEqual(self.openai.files.retrieve(made.id), made)
        self.assertEqual(self.openai.files.wait_for_processing(made.id), made)
        self.assertEqual(self.openai.files.content(made.id).content, PAGE.read_bytes())
        self.assertEqual([file.id for file in self.openai.files.list(purpose="user_data")], [made.id])
        self.assertEqual(len(list(self.openai.files.list(limit=1, order="asc"))), 2)  # over two pages
        answer = self.openai.chat.completions.create(model="any", messages=[{"role": "user", "content": [{"type": "file", "file": {"file_id": made.id}}, question]}], temperature=0, max_tokens=24)
        self.assertEqual(answer.choices[0].message.content, ANSWER)
        asked = [{"type": "input_image", "file_id": made.id, "detail": "auto"}, {"type": "input_text", "text": QUESTION}]
        answer = self.openai.responses.create(model="any", input=[{"role": "user", "content": asked}], temperature=0, max_output_tokens=24)
        self.assertEqual(answer.output_text, ANSWER)
        with self.assertRaises(openai.NotFoundError) as caught:
            self.openai.files.retrieve("file-none")
        self.assertEqual(caught.exception.param, "id")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.openai.files.create(file=b"", purpose="user_data")
        self.assertEqual(caught.exception.param, "file")
        for file in self.openai.files.list():
            self.assertTrue(self.openai.files.delete(file.id).deleted)
        for files in (self.anthropic.files, self.anthropic.beta.files):
            made = files.upload(file=("invoice.png", PAGE.read_bytes(), "image/png"), expires_in_seconds=3600)
            self.assertEqual((made.type, made.filename, made.mime_type, made.size_bytes, (made.expires_at - made.created_at).seconds), ("file", "invoice.png", "image/png", PAGE.stat().st_size, 3600))
        text = files.upload(file=("note.md", b"# Note", "text/markdown"))
        self.assertEqual([file.id for file in files.list(limit=1)][:2], [text.id, made.id])  # over three pages
        self.assertEqual([file.id for file in files.list(ids=[made.id, "file_none"])], [made.id])
        self.assertEqual((files.retrieve_metadata(made.id).id, files.download(made.id).read()), (made.id, PAGE.read_bytes()))
        blocks = [{"type": "image", "source": {"type": "file", "file_id": made.id}}, {"type": "text", "text": QUESTION}]
        self.assertEqual(self.anthropic.messages.create(**self.message(messages=[{"role": "user", "content": blocks}])).content[0].text, ANSWER)
        note = [{"type": "document", "source": {"type": "file", "file_id": text.id}}]
        self.assertEqual(self.anthropic.messages.count_tokens(model="any", messages=[{"role": "user", "content": note}]),
                         self.anthropic.messages.count_tokens(model="any", messages=[{"role": "user", "content": [{"type": "text", "text": "# Note"}]}]))
        for file in files.list():
            self.assertEqual(files.delete(file.id).type, "file_deleted")
        with self.assertRaises(anthropic.NotFoundError) as caught:
            files.retrieve_metadata(made.id)
        self.assertEqual(caught.exception.body["error"]["type"], "not_found_error")

    def test_errors_in_each_shape(self):
        for call in (lambda: self.openai.chat.completions.create(model="any", messages=[]), lambda: self.openai.responses.create(model="any", input=[{"type": "screen"}])):
            with self.assertRaises(openai.BadRequestError) as caught:
                call()
            self.assertEqual(caught.exception.type, "invalid_request_error")
            self.assertTrue(caught.exception.param)
        for body in (self.message(messages=[{"role": "robot", "content": "Hi"}]), self.message(messages=[{"role": "user", "content": [{"type": "document", "source": {}}]}]), self.message(tools=[{"name": "bash"}])):
            with self.assertRaises(anthropic.BadRequestError) as caught:
                self.anthropic.messages.create(**body)
            self.assertEqual(caught.exception.body["error"]["type"], "invalid_request_error")
        with self.assertRaises(anthropic.NotFoundError) as caught:
            self.anthropic.post("/v1/messages/batches", cast_to=object, body={})
        self.assertEqual(caught.exception.body["error"]["type"], "not_found_error")

    def test_client_disconnect_ends_the_request(self):
        endless = dict(max_tokens=3000, extra_body={"ignore_eos": True})
        stream = self.openai.chat.completions.create(model="any", messages=[{"role": "user", "content": "Hello"}], stream=True, **endless)
        next(iter(stream))
        stream.close()
        with self.anthropic.messages.stream(model="any", messages=[{"role": "user", "content": "Hello"}], **endless) as stream:
            next(iter(stream.text_stream))
        self.wait_until_idle()


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Agents(Clients, RandomServer):
    """Twenty steps with three tools, streamed: a history that grows, two results with images. The model is random, so calls are forced."""
    TEMPLATE = "hermes"

    def check(self, i, name, arguments):
        self.assertIn(name, SCHEMAS, i)
        self.assertEqual(set(arguments), set(SCHEMAS[name]["properties"]), i)

    def test_chat_completions(self):
        tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
        history = [{"role": "system", "content": "You use a computer."}, {"role": "user", "content": "Find the total."}]
        for i in range(STEPS):
            with self.openai.chat.completions.stream(model="any", messages=history, tools=tools, tool_choice="required", parallel_tool_calls=False, seed=i, max_tokens=200) as stream:
                message = stream.get_final_completion().choices[0].message
            call, = message.tool_calls
            self.check(i, call.function.name, json.loads(call.function.arguments))
            history.append({"role": "assistant", "content": message.content, "tool_calls": [{"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": call.function.arguments}}]})
            history.append({"role": "tool", "tool_call_id": call.id, "content": [CHAT_IMAGE] if i in WITH_IMAGE else "done"})

    def test_responses(self):
        tools = [{"type": "function", "name": name, "parameters": schema, "strict": True} for name, schema in SCHEMAS.items()]
        history = [{"role": "user", "content": "Find the total."}]
        for i in range(STEPS):
            with self.openai.responses.stream(model="any", instructions="You use a computer.", input=history, tools=tools, tool_choice="required", parallel_tool_calls=False, max_output_tokens=200, extra_body={"seed": i}) as stream:
                response = stream.get_final_response()
            call, = response.output
            self.check(i, call.name, json.loads(call.arguments))
            history.append({"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments})
            history.append({"type": "function_call_output", "call_id": call.call_id, "output": [INPUT_IMAGE] if i in WITH_IMAGE else "done"})

    def test_messages(self):
        tools = [{"name": name, "description": f"to {name}", "input_schema": schema} for name, schema in SCHEMAS.items()]
        history = [{"role": "user", "content": "Find the total."}]
        for i in range(STEPS):
            with self.anthropic.messages.stream(model="any", system="You use a computer.", messages=history, tools=tools, tool_choice={"type": "any", "disable_parallel_tool_use": True}, max_tokens=200) as stream:
                message = stream.get_final_message()
            call, = message.content
            self.assertEqual((call.type, message.stop_reason), ("tool_use", "tool_use"))
            self.check(i, call.name, call.input)
            history.append({"role": "assistant", "content": [call.model_dump()]})
            history.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": [BLOCK_IMAGE] if i in WITH_IMAGE else "done"}]})

    def test_schemas(self):
        schema = {"type": "object", "properties": {"total": {"type": "number"}, "paid": {"type": "boolean"}}, "required": ["total", "paid"], "additionalProperties": False}
        messages = [{"role": "user", "content": "Say something."}]
        for seed in range(3):
            chat = self.openai.chat.completions.create(model="any", messages=messages, seed=seed, max_tokens=200, response_format={"type": "json_schema", "json_schema": {"name": "bill", "schema": schema, "strict": True}})
            response = self.openai.responses.create(model="any", input="Say something.", max_output_tokens=200, extra_body={"seed": seed}, text={"format": {"type": "json_schema", "name": "bill", "schema": schema, "strict": True}})
            message = self.anthropic.messages.create(model="any", messages=messages, max_tokens=200, extra_body={"seed": seed}, output_config={"format": {"type": "json_schema", "schema": schema}})
            for text in (chat.choices[0].message.content, response.output_text, message.content[0].text):
                self.assertEqual(set(json.loads(text)), {"total", "paid"})


if __name__ == "__main__":
    unittest.main()
