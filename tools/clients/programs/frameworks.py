"""Frameworks that wrap a model: LangChain, Instructor, Pydantic AI, LlamaIndex, Haystack."""
import asyncio
import base64

from .common import ANTHROPIC_PARTS, CLICK, DATA, LIMIT, MODEL, PAGE, PARTS, QUESTION, SEES, URL, check, click, right


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
            """The findings."""
            sure: bool
        return check(isinstance(self.model.with_structured_output(Found).invoke(self.messages(self.parts)), Found), "a Found")


class LangChainAnthropic(LangChain):
    def __init__(self):
        from langchain_anthropic import ChatAnthropic
        self.model = ChatAnthropic(model=MODEL, base_url=URL, api_key="none", max_tokens=LIMIT, max_retries=0)
        self.parts = ANTHROPIC_PARTS


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


class PydanticAi:
    def agent(self, **more):
        from pydantic_ai import Agent
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider
        return Agent(OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL + "/v1", api_key="none")), model_settings={"temperature": 0, "max_tokens": LIMIT}, retries=0, **more)

    def parts(self):
        from pydantic_ai import BinaryContent
        return [BinaryContent(data=base64.b64decode(DATA), media_type="image/png"), QUESTION] if SEES else QUESTION

    def chat(self): return check(isinstance(self.agent().run_sync("Hello").output, str), "an answer")
    def image(self): return right(self.agent().run_sync(self.parts()).output)

    def stream(self):
        async def pieces():
            async with self.agent().run_stream(self.parts()) as answer:
                return "".join([piece async for piece in answer.stream_text(delta=True)])
        return right(asyncio.run(pieces()))

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


class LlamaIndex:
    def __init__(self):
        from llama_index.llms.openai_like import OpenAILike
        self.model = OpenAILike(model=MODEL, api_base=URL + "/v1", api_key="none", is_chat_model=True, is_function_calling_model=True, context_window=4096, temperature=0, max_tokens=LIMIT, max_retries=0)

    def messages(self):
        from llama_index.core.llms import ChatMessage, ImageBlock, TextBlock
        return [ChatMessage(role="user", blocks=([ImageBlock(path=PAGE, image_mimetype="image/png")] if SEES else []) + [TextBlock(text=QUESTION)])]

    def tool(self):
        import typing, pydantic
        from llama_index.core.tools import FunctionTool
        def click(x: typing.Annotated[int, pydantic.Field(ge=0, le=100)]) -> str:
            """Clicks at x."""
            return "done"
        return FunctionTool.from_defaults(click)

    def chat(self): return check(isinstance(self.model.complete("Hello").text, str), "an answer")
    def image(self): return right(self.model.chat(self.messages()).message.content)
    def stream(self): return right("".join(c.delta or "" for c in self.model.stream_chat(self.messages())))
    def tools_auto(self): return right(self.model.chat_with_tools([self.tool()], chat_history=self.messages()).message.content)

    def tools_required(self):
        call = self.model.get_tool_calls_from_response(self.model.chat_with_tools([self.tool()], user_msg="Go.", tool_required=True))[0]
        return click(call.tool_name, call.tool_kwargs)

    def structured(self):
        import pydantic
        class Found(pydantic.BaseModel):
            """The findings."""
            sure: bool
        found = self.model.as_structured_llm(Found).chat(self.messages()).raw
        return check(isinstance(found, Found), found)


class Haystack:
    def __init__(self):
        from haystack.components.generators.chat import OpenAIChatGenerator
        from haystack.dataclasses import ChatMessage, ImageContent
        from haystack.utils import Secret
        self.user = ChatMessage.from_user
        self.generator = lambda **more: OpenAIChatGenerator(api_key=Secret.from_token("none"), model=MODEL, api_base_url=URL + "/v1", max_retries=0, **more)
        self.parts = ([ImageContent(base64_image=DATA, mime_type="image/png")] if SEES else []) + [QUESTION]

    def ask(self, parts, generator={}, **more):
        settings = {"temperature": 0, "max_completion_tokens": LIMIT, **more.pop("generation_kwargs", {})}
        return self.generator(**generator).run([self.user(content_parts=parts)], generation_kwargs=settings, **more)["replies"][0]

    def tool(self):
        from haystack.tools import Tool
        return Tool(name="click", description="Clicks at x.", parameters=CLICK, function=lambda x: "done")

    def chat(self): return check(isinstance(self.ask(["Hello"]).text, str), "an answer")
    def image(self): return right(self.ask(self.parts).text)

    def stream(self):
        pieces = []
        self.ask(self.parts, streaming_callback=lambda chunk: pieces.append(chunk.content))
        return right("".join(pieces))

    def tools_auto(self): return right(self.ask(self.parts, tools=[self.tool()]).text)

    def tools_required(self):
        call = self.ask(["Go."], tools=[self.tool()], generation_kwargs={"tool_choice": "required"}).tool_calls[0]
        return click(call.tool_name, call.arguments)

    def structured(self):
        import pydantic
        class Found(pydantic.BaseModel):
            sure: bool
        return check(Found.model_validate_json(self.ask(self.parts, generation_kwargs={"response_format": Found}).text), "a Found")
