"""What programs of today send: each asks a running `vlcache serve` as its users would, and says what came back.

    python programs.py NAME URL PAGE.png    # in an environment that has the program

Prints a line of JSON for each of: chat, image, stream, tools_auto, tools_required, structured:
{"program", "case", "ok", "detail"}. The question about the page must have the right answer; a forced call must have valid
arguments; a structured answer must be what its class allows."""
import base64
import json
import pathlib
import sys

QUESTION, RIGHT = "What is the TOTAL?", "435.75"
NAME, URL, PAGE = sys.argv[1:4] if __name__ == "__main__" else ("", "", "")
DATA = base64.b64encode(pathlib.Path(PAGE).read_bytes()).decode() if PAGE else ""
DATA_URI = f"data:image/png;base64,{DATA}"
PARTS = [{"type": "image_url", "image_url": {"url": DATA_URI}}, {"type": "text", "text": QUESTION}]
CLICK = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 100}}, "required": ["x"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "click", "description": "Clicks at x.", "parameters": CLICK}}
MODEL = "tinydoc"
LIMIT = 300


def check(truth, detail):
    assert truth, detail
    return str(detail)[:80]


def right(text):
    return check(RIGHT in (text or ""), text)


def click(name, arguments):
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    return check(name == "click" and 0 <= arguments["x"] <= 100, (name, arguments))


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
        self.parts = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}, {"type": "text", "text": QUESTION}]
        self.tool = {"name": "click", "description": "Clicks at x.", "input_schema": CLICK}

    def ask(self, content, **more):
        return self.client.messages.create(model=MODEL, messages=[{"role": "user", "content": content}], max_tokens=LIMIT, **more)

    def chat(self): return check(self.ask("Hello").stop_reason in ("end_turn", "max_tokens"), "an answer")
    def image(self): return right(self.ask(self.parts).content[0].text)

    def stream(self):
        with self.client.messages.stream(model=MODEL, messages=[{"role": "user", "content": self.parts}], max_tokens=LIMIT) as stream:
            return right("".join(stream.text_stream))

    def tools_auto(self): return right(self.ask(self.parts, tools=[self.tool]).content[0].text)

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


class LangChain:
    def __init__(self):
        from langchain_openai import ChatOpenAI
        self.model = ChatOpenAI(model=MODEL, base_url=URL + "/v1", api_key="none", temperature=0, max_tokens=LIMIT, max_retries=0)
        self.parts = PARTS

    def messages(self, content):
        from langchain_core.messages import HumanMessage
        return [HumanMessage(content=content)]

    def tool(self):
        from langchain_core.tools import tool
        import typing, pydantic
        @tool
        def click(x: typing.Annotated[int, pydantic.Field(ge=0, le=100)]) -> str:
            """Clicks at x."""
            return "done"
        return click

    def chat(self): return check(isinstance(self.model.invoke("Hello").content, (str, list)), "an answer")
    def image(self): return right(self.model.invoke(self.messages(self.parts)).text)
    def stream(self): return right("".join(c.text for c in self.model.stream(self.messages(self.parts))))
    def tools_auto(self): return right(self.model.bind_tools([self.tool()]).invoke(self.messages(self.parts)).text)

    def tools_required(self):
        call = self.model.bind_tools([self.tool()], tool_choice="any").invoke("Go.").tool_calls[0]
        return click(call["name"], call["args"])

    def structured(self):
        import pydantic
        class Found(pydantic.BaseModel):
            """What was found."""
            sure: bool
        return check(isinstance(self.model.with_structured_output(Found).invoke(self.messages(self.parts)), Found), "a Found")


class LangChainAnthropic(LangChain):
    def __init__(self):
        from langchain_anthropic import ChatAnthropic
        self.model = ChatAnthropic(model=MODEL, base_url=URL, api_key="none", max_tokens=LIMIT, max_retries=0)
        self.parts = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}, {"type": "text", "text": QUESTION}]


class Instructor:
    def __init__(self):
        import instructor, openai
        self.client = instructor.from_openai(openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0), mode=instructor.Mode.TOOLS)

    def structured(self):
        import pydantic
        class Found(pydantic.BaseModel):
            sure: bool
        found = self.client.chat.completions.create(model=MODEL, response_model=Found, max_retries=0, max_tokens=LIMIT, temperature=0, messages=[{"role": "user", "content": PARTS}])
        return check(isinstance(found, Found), found)


class Agents:
    """The OpenAI Agents SDK, on chat completions and with its default, responses."""
    def __init__(self):
        import agents, openai
        agents.set_tracing_disabled(True)
        self.agents = agents
        self.client = openai.AsyncOpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
        self.input = [{"role": "user", "content": [{"type": "input_image", "image_url": DATA_URI, "detail": "auto"}, {"type": "input_text", "text": QUESTION}]}]

    def run(self, given, **more):
        model = self.agents.OpenAIResponsesModel(model=MODEL, openai_client=self.client)
        settings = self.agents.ModelSettings(temperature=0, max_tokens=LIMIT, **more.pop("settings", {}))
        return self.agents.Runner.run_sync(self.agents.Agent(name="reader", model=model, model_settings=settings, **more), given, max_turns=2)

    def chat(self): return check(isinstance(self.run("Hello").final_output, str), "an answer")
    def image(self): return right(self.run(self.input).final_output)

    def tools_auto(self):
        @self.agents.function_tool
        def click(x: int) -> str:
            """Clicks at x."""
            return "done"
        return right(self.run(self.input, tools=[click]).final_output)

    def structured(self):
        import pydantic
        class Found(pydantic.BaseModel):
            sure: bool
        return check(isinstance(self.run(self.input, output_type=Found).final_output, Found), "a Found")


class PydanticAi:
    def agent(self, **more):
        from pydantic_ai import Agent
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider
        return Agent(OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL + "/v1", api_key="none")), model_settings={"temperature": 0, "max_tokens": LIMIT}, retries=0, **more)

    def parts(self):
        from pydantic_ai import BinaryContent
        return [BinaryContent(data=base64.b64decode(DATA), media_type="image/png"), QUESTION]

    def chat(self): return check(isinstance(self.agent().run_sync("Hello").output, str), "an answer")
    def image(self): return right(self.agent().run_sync(self.parts()).output)

    def tools_auto(self):
        agent = self.agent()
        @agent.tool_plain
        def click(x: int) -> str:
            """Clicks at x."""
            return "done"
        return right(agent.run_sync(self.parts()).output)

    def structured(self):
        import pydantic
        class Found(pydantic.BaseModel):
            sure: bool
        return check(isinstance(self.agent(output_type=Found).run_sync(self.parts()).output, Found), "a Found")


class SmolAgents:
    def __init__(self):
        from smolagents import OpenAIServerModel
        self.model = OpenAIServerModel(model_id=MODEL, api_base=URL + "/v1", api_key="none", temperature=0, max_tokens=LIMIT)

    def ask(self, content, **more):
        return self.model.generate([{"role": "user", "content": content}], **more)

    def chat(self): return check(isinstance(self.ask([{"type": "text", "text": "Hello"}]).content, str), "an answer")
    def image(self): return right(self.ask(PARTS).content)

    def tools_required(self):
        from smolagents import tool
        @tool
        def click(x: int) -> str:
            """Clicks.

            Args:
                x: where
            """
            return "done"
        call = self.ask([{"type": "text", "text": "Go."}], tools_to_call_from=[click]).tool_calls[0].function
        return check(call.name == "click", call)


PROGRAMS = {"openai": OpenAi, "anthropic": Anthropic, "litellm": LiteLlm, "langchain-openai": LangChain, "langchain-anthropic": LangChainAnthropic, "instructor": Instructor,
            "openai-agents": Agents, "pydantic-ai": PydanticAi, "smolagents": SmolAgents}
CASES = ("chat", "image", "stream", "tools_auto", "tools_required", "structured")

if __name__ == "__main__":
    program = PROGRAMS[NAME]()
    for case in CASES:
        if not hasattr(program, case): continue
        try:
            ok, detail = True, getattr(program, case)()
        except Exception as error:
            ok, detail = False, f"{type(error).__name__}: {error}"[:300]
        print(json.dumps({"program": NAME, "case": case, "ok": ok, "detail": detail}), flush=True)
