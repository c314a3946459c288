"""The clients of the APIs themselves, and LiteLLM, which speaks all of them."""
import json

from .common import ANTHROPIC_PARTS, CLICK, LIMIT, MODEL, PARTS, TOOL, URL, check, click, right


class OpenAi:
    def __init__(self):
        import openai
        self.client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)

    def ask(self, content, **more):
        return self.client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": content}], temperature=0, max_tokens=LIMIT, **more)

    def chat(self): return check(self.ask("Hello").choices[0].finish_reason in ("stop", "length"), "an answer")
    def image(self): return right(self.ask(PARTS).choices[0].message.content)
    def stream(self): return right("".join(c.choices[0].delta.content or "" for c in self.ask(PARTS, stream=True) if c.choices))
    def tools_auto(self): return right(self.ask(PARTS, tools=[TOOL]).choices[0].message.content)

    def tools_required(self):
        call = self.ask("Go.", tools=[TOOL], tool_choice="required").choices[0].message.tool_calls[0].function
        return click(call.name, call.arguments)

    def structured(self):
        import pydantic
        class Found(pydantic.BaseModel):
            kind: str = pydantic.Field(max_length=5)
            sure: bool
        answer = self.client.chat.completions.parse(model=MODEL, messages=[{"role": "user", "content": PARTS}], temperature=0, max_tokens=LIMIT, response_format=Found)
        return check(isinstance(answer.choices[0].message.parsed, Found), answer.choices[0].message.parsed)


class Anthropic:
    def __init__(self):
        import anthropic
        self.client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
        self.parts = ANTHROPIC_PARTS
        self.tool = {"name": "click", "description": "Clicks at x.", "input_schema": CLICK}

    def ask(self, content, **more):
        return self.client.messages.create(model=MODEL, messages=[{"role": "user", "content": content}], max_tokens=LIMIT, **more)

    def chat(self): return check(self.ask("Hello").stop_reason in ("end_turn", "max_tokens"), "an answer")
    def image(self): return right(self.ask(self.parts).content[0].text)

    def stream(self):
        with self.client.messages.stream(model=MODEL, messages=[{"role": "user", "content": self.parts}], max_tokens=LIMIT) as stream:
            return right("".join(stream.text_stream))

    def tools_auto(self): return right(next((b.text for b in self.ask(self.parts, tools=[self.tool]).content if b.type == "text"), None))

    def tools_required(self):
        block = next(b for b in self.ask("Go.", tools=[self.tool], tool_choice={"type": "any"}).content if b.type == "tool_use")
        return click(block.name, block.input)

    def structured(self):
        schema = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"], "additionalProperties": False}
        answer = self.ask(self.parts, extra_body={"output_config": {"format": {"type": "json_schema", "schema": schema}}})
        return check(isinstance(json.loads(answer.content[0].text)["sure"], bool), answer.content[0].text)


class LiteLlm(OpenAi):
    def __init__(self):
        import litellm
        litellm.telemetry = False
        self.completion = litellm.completion

    def ask(self, content, **more):
        return self.completion(model="openai/" + MODEL, api_base=URL + "/v1", api_key="none", messages=[{"role": "user", "content": content}], temperature=0, max_tokens=LIMIT, **more)

    def structured(self):
        import pydantic
        class Found(pydantic.BaseModel):
            sure: bool
        return check(Found.model_validate_json(self.ask(PARTS, response_format=Found).choices[0].message.content), "a Found")
