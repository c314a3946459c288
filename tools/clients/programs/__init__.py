"""Programs of today, each asked as its users would ask it."""

# name: (environment, whose packages are in requirements/ENVIRONMENT.txt; module and class that run it; the model that it needs, one of tests/answering_model.py)
PROGRAMS = {
    "openai": ("main", "sdks.OpenAi"),
    "anthropic": ("main", "sdks.Anthropic"),
    "litellm": ("main", "sdks.LiteLlm"),
    "langchain-openai": ("main", "frameworks.LangChain"),
    "langchain-anthropic": ("main", "frameworks.LangChainAnthropic"),
    "llama-index": ("llama-index", "frameworks.LlamaIndex"),
    "haystack": ("main", "frameworks.Haystack"),
    "pydantic-ai": ("main", "frameworks.PydanticAi"),
    "instructor": ("main", "frameworks.Instructor"),
    "openai-agents": ("main", "agents.Agents"),
    "smolagents": ("main", "agents.SmolAgents"),
    "llm": ("main", "command_lines.Llm"),
    "aider": ("aider", "command_lines.Aider"),
    "guidellm": ("guidellm", "command_lines.GuideLlm"),
    "lm-eval": ("lm-eval", "harnesses.LmEval"),
    "lmms-eval": ("lmms-eval", "harnesses.LmmsEval"),
    "open-webui": ("open-webui", "open_webui.OpenWebUi"),
    "docling": ("docling", "documents.Docling", "doctags"),
    "mineru-vl-utils": ("mineru", "documents.MinerU", "mineru"),
}
CASES = ("chat", "image", "stream", "tools_auto", "tools_required", "structured")
