"""Programs that run tools themselves: OpenAI's Agents SDK, smolagents."""
import asyncio

from .common import DATA_URI, LIMIT, MODEL, PARTS, QUESTION, SEES, URL, check, right


class Agents:
    """The OpenAI Agents SDK, on chat completions and with its default, responses."""
    def __init__(self):
        import agents, openai
        agents.set_tracing_disabled(True)
        self.agents = agents
        self.client = lambda: openai.AsyncOpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)  # of one event loop each
        self.input = [{"role": "user", "content": ([{"type": "input_image", "image_url": DATA_URI, "detail": "auto"}] if SEES else []) + [{"type": "input_text", "text": QUESTION}]}]

    def agent(self, settings={}, **more):
        model = self.agents.OpenAIResponsesModel(model=MODEL, openai_client=self.client())
        return self.agents.Agent(name="reader", model=model, model_settings=self.agents.ModelSettings(temperature=0, max_tokens=LIMIT, **settings), **more)

    def run(self, given, **more):
        return self.agents.Runner.run_sync(self.agent(**more), given, max_turns=2)

    def reads(self, answer):
        try:
            return right(answer())
        except (self.agents.MaxTurnsExceeded, self.agents.ModelBehaviorError) as error:
            return check(not SEES and ("max_output_tokens" in str(error) or "turns" in str(error)), error)  # a model of text may go on and on

    def click(self):
        @self.agents.function_tool
        def click(x: int) -> str:
            """Clicks at x."""
            return "done"
        return click

    def chat(self): return check(isinstance(self.run("Hello").final_output, str), "an answer")
    def image(self): return right(self.run(self.input).final_output)

    def stream(self):
        async def pieces():
            answer = self.agents.Runner.run_streamed(self.agent(), self.input)
            return "".join([e.data.delta async for e in answer.stream_events() if e.type == "raw_response_event" and e.data.type == "response.output_text.delta"])
        return self.reads(lambda: asyncio.run(pieces()))

    def tools_required(self): return check(self.run("Go.", tools=[self.click()], settings={"tool_choice": "required", "parallel_tool_calls": False}, tool_use_behavior="stop_on_first_tool").final_output == "done", "a call")

    def tools_auto(self): return self.reads(lambda: self.run(self.input, tools=[self.click()]).final_output)

    def structured(self):
        import pydantic
        class Found(pydantic.BaseModel):
            sure: bool
        return check(isinstance(self.run(self.input, output_type=Found).final_output, Found), "a Found")


class SmolAgents:
    def __init__(self):
        from smolagents import OpenAIServerModel
        self.model = OpenAIServerModel(model_id=MODEL, api_base=URL + "/v1", api_key="none", temperature=0, max_tokens=LIMIT)

    def ask(self, content, **more):
        return self.model.generate([{"role": "user", "content": content}], **more)

    def chat(self): return check(isinstance(self.ask([{"type": "text", "text": "Hello"}]).content, str), "an answer")
    def image(self): return right(self.ask(PARTS).content)
    def stream(self): return right("".join(delta.content or "" for delta in self.model.generate_stream([{"role": "user", "content": PARTS}])))

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
