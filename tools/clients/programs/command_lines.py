"""Programs that people type: llm, aider, guidellm. Each runs in a folder of its own, without the settings of the machine's user."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from .common import LIMIT, MODEL, PAGE, QUESTION, SEES, URL, check, right

FOUND = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"], "additionalProperties": False}  # `llm`'s short form, "sure bool", lets a model add what it likes
BIN = pathlib.Path(sys.executable).parent


class CommandLine:
    def __init__(self):
        self.kept = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.kept.name)

    def run(self, *command, **environment):
        """What it printed, to a file: a child that outlives the program would keep a pipe open."""
        program = command[0] if "/" in command[0] else BIN / command[0]
        with open(self.folder / "printed.txt", "w+") as printed, open(self.folder / "errors.txt", "w+") as errors:
            code = subprocess.run([program, *map(str, command[1:])], cwd=self.folder, stdout=printed, stderr=errors, stdin=subprocess.DEVNULL, timeout=900,
                                  env={**os.environ, "HOME": str(self.folder), "PATH": f"{BIN}:{os.environ['PATH']}", "NO_COLOR": "1", **environment}).returncode
            printed.seek(0)
            errors.seek(0)
            said = printed.read()
            assert code == 0, (said + errors.read())[-300:]
        return said


class Llm(CommandLine):
    """simonw's llm."""
    def __init__(self):
        super().__init__()
        (self.folder / "extra-openai-models.yaml").write_text(json.dumps([{"model_id": "here", "model_name": MODEL, "api_base": URL + "/v1", "vision": SEES, "supports_schema": True, "supports_tools": True}]))

    def ask(self, *more, page=SEES):
        page = ["-a", PAGE] if page else []
        return self.run("llm", "prompt", "-m", "here", "--key", "none", "-o", "temperature", 0, "-o", "max_tokens", LIMIT, *page, *more, LLM_USER_PATH=str(self.folder))

    def chat(self): return check(self.ask("Hello", "--no-stream", page=False) is not None, "an answer")
    def image(self): return right(self.ask(QUESTION, "--no-stream"))
    def stream(self): return right(self.ask(QUESTION))
    def tools_auto(self): return right(self.ask(QUESTION, "--functions", 'def click(x: int) -> str:\n    """Clicks at x."""\n    return "done"'))
    def structured(self): return check(isinstance(json.loads(self.ask(QUESTION, "--schema", json.dumps(FOUND)))["sure"], bool), "a Found")


class Aider(CommandLine):
    def __init__(self):
        super().__init__()
        (self.folder / "about.json").write_text(json.dumps({f"openai/{MODEL}": {"litellm_provider": "openai", "mode": "chat", "supports_vision": SEES, "max_input_tokens": 4096, "max_output_tokens": LIMIT}}))
        (self.folder / "settings.yml").write_text(json.dumps([{"name": f"openai/{MODEL}", "edit_format": "ask", "use_temperature": True, "extra_params": {"max_tokens": LIMIT}}]))

    def ask(self, message, *more):
        return self.run("aider", "--model", f"openai/{MODEL}", "--openai-api-base", URL + "/v1", "--openai-api-key", "none", "--no-git", "--yes-always", "--no-check-update", "--analytics-disable",
                        "--no-show-model-warnings", "--map-tokens", 0, "--no-pretty", "--model-metadata-file", "about.json", "--model-settings-file", "settings.yml", "--message", message, *more)

    def chat(self): return check("rror" not in (said := self.ask("Hello", "--no-stream")), said)
    def image(self): return check("Added " in (said := self.ask(QUESTION, "--no-stream", PAGE)) and "rror" not in said, said)  # tinydoc does not read after its system text
    def stream(self): return check("rror" not in (said := self.ask("Hello", "--stream")), said)


class GuideLlm(CommandLine):
    def measure(self, data, stream):
        self.run("guidellm", "run", "--backend", f"kind=openai_http,target={URL},model={MODEL},request_format=/v1/chat/completions,max_tokens=16,stream={stream}", "--tokenizer", f"kind=huggingface_auto,model={os.environ['CLIENTS_FOLDER']}",
                 "--data", data, "--profile", "kind=synchronous", "--constraint", "kind=max_requests,count=2", "--output", "kind=json,path=report.json", "--disable-console", HF_HUB_OFFLINE="1")
        report, = json.loads((self.folder / "report.json").read_text())["benchmarks"]
        totals = report["metrics"]["request_totals"]
        return check(totals["successful"] == 2 and not totals["errored"], totals)

    def chat(self): return self.measure("kind=synthetic_text,prompt_tokens=64,output_tokens=16", False)
    def stream(self): return self.measure("kind=synthetic_text,prompt_tokens=64,output_tokens=16", True)
    def image(self): return self.measure("kind=synthetic_image,width=64,height=64,format=png,content=solid", True)
