"""Loops of twenty steps as Codex CLI and Claude Code send them, from their published formats: headers, compressed bodies, tools in namespaces, system turns in
the middle, a prompt beyond the context, a compacted history. The model is random: where it calls nothing, the agent takes a call of its own."""
import base64
import gzip
import hashlib
import json
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/e2e"))
from program import PAGE  # noqa: E402
from server import data_of  # noqa: E402
from test_answer_forms import RandomServer, copy_model  # noqa: E402

STEPS, LATE, WITH_IMAGE = 20, 7, 12  # of a loop; steps with a late system turn, and with an image as the result
DATA = base64.b64encode(PAGE.read_bytes()).decode()
TEXT = {"type": "string"}


def schema(required=(), **properties):
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


class Agent(RandomServer):
    TEMPLATE = "hermes"
    FLAGS = ("--max-tokens", "120")  # of free answers, for which the clients set no bound, or a large one

    @classmethod
    def make_model(cls):
        folder = copy_model(cls.TEMPLATE)
        config = json.loads((folder / "config.json").read_text())
        config["text_config"]["max_position_embeddings"] = 16384
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def send(self, path, body, headers, compressed):
        data = json.dumps(body).encode()
        r = self.answer("POST", path, gzip.compress(data) if compressed else data, {**headers, **({"content-encoding": "gzip"} if compressed else {})})
        return r.status, r.text.decode()

    def events_of(self, *request):
        status, text = self.send(*request)
        self.assertEqual(status, 200, text[:500])
        return [json.loads(line) for line in data_of(text.split("\n"))]

    def n_tokens(self, text):
        return self.call("POST", "/tokenize", {"prompt": text})[1]["count"]

    def check_cached(self, step, usage, before, said):
        """Everything that the step before had sent is found again; what was added since is in the prompt."""
        n, cached = usage
        if before is not None:
            self.assertGreaterEqual(cached, before - 4, step)
            self.assertGreaterEqual(n - before, sum(map(self.n_tokens, said)), step)


class Codex(Agent):
    HEADERS = {"originator": "codex_cli_rs", "user-agent": "codex_cli_rs/0.150.0 (Debian 12.0.0; x86_64) xterm", "version": "0.150.0", "accept": "text/event-stream", "authorization": "Bearer none",
               "session_id": "019deafc-f137-7fa1-b492-aeeda99e1290", "conversation_id": "019deafc-f137-7fa1-b492-aeeda99e1290", "x-codex-turn-metadata": "{\"turn_id\":\"1\"}"}
    SHELL = {"type": "function", "name": "exec_command", "description": "Runs a command in a PTY.", "strict": False,
             "parameters": schema(["cmd"], cmd=TEXT, justification=TEXT, login={"type": "boolean"}, max_output_tokens={"type": "number"}, prefix_rule={"type": "array", "items": TEXT}, workdir=TEXT, yield_time_ms={"type": "number"})}
    PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": {"type": "grammar", "syntax": "lark", "definition": "start: begin hunk end\nbegin: \"*** Begin Patch\" LF\n"}}
    TEAM = {"type": "namespace", "name": "collaboration", "description": "Tools for spawning and managing sub-agents.", "tools": [
        {"type": "function", "name": "list_agents", "strict": False, "parameters": schema()}, {"type": "function", "name": "send_message", "strict": False, "parameters": schema(["target", "message"], target=TEXT, message={**TEXT, "encrypted": True})}]}
    TOOLS = [SHELL, PATCH, TEAM, {"type": "web_search", "external_web_access": True}, {"type": "image_generation", "output_format": "png"}, {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": schema(["query"], query=TEXT)}]
    SUMMARIZE = "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary for another LLM that will resume the task."

    @staticmethod
    def message(role, *texts):
        return {"type": "message", "role": role, "content": [{"type": "output_text" if role == "assistant" else "input_text", "text": text} for text in texts]}

    def start(self):
        return [self.message("developer", "<permissions instructions>Everything is allowed.</permissions instructions>"), self.message("user", "# AGENTS.md instructions for /w\n\n<INSTRUCTIONS>\nBe brief.\n</INSTRUCTIONS>"),
                self.message("user", "<environment_context>\n  <cwd>/w</cwd>\n</environment_context>"), self.message("user", "Find the total.")]

    def body(self, items, **more):
        tools = [] if any(item.get("type") == "additional_tools" for item in items) else self.TOOLS
        return {"model": "gpt-5.5", "instructions": "You are Codex.", "input": items, "tools": tools, "tool_choice": "auto", "parallel_tool_calls": True, "reasoning": {"effort": "medium", "summary": "auto"}, "store": False,
                "stream": True, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "019deafc", "client_metadata": {"x-codex-installation-id": "1"}, "text": {"verbosity": "low"}, **more}

    def ask(self, items, step, **more):
        """(items of the answer as the client keeps them, (input tokens, cached)); what the client requires of the events is there."""
        events = self.events_of("/v1/responses", self.body(items, **more), self.HEADERS, step % 3 == 0)
        self.assertIn("response", events[0])
        last = events[-1]["response"]
        self.assertIn(last["status"], ("completed", "incomplete"), last)
        self.assertTrue(last["id"])
        usage = last["usage"]
        self.assertEqual(usage["total_tokens"], usage["input_tokens"] + usage["output_tokens"])
        self.assertIsInstance(usage["output_tokens_details"]["reasoning_tokens"], int)
        done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
        for item in done:
            fields = {"message": ("role", "content"), "function_call": ("name", "arguments", "call_id"), "custom_tool_call": ("name", "input", "call_id"), "reasoning": ("summary",)}[item["type"]]
            self.assertTrue(set(fields) <= set(item), item)
        return [{k: v for k, v in item.items() if k != "id"} for item in done], (usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"])

    def step(self, step, items):
        more = {} if step % 2 else {"tool_choice": {"type": "function", "namespace": "collaboration", "name": "list_agents"}}
        answer, usage = self.ask(items, step, **more)
        calls = [item for item in answer if item["type"].endswith("_call")]
        if not step % 2:
            self.assertEqual([(c["type"], c.get("namespace"), c["name"], json.loads(c["arguments"])) for c in calls], [("function_call", "collaboration", "list_agents", {})])
        if not calls:
            own = [{"type": "function_call", "name": "exec_command", "arguments": json.dumps({"cmd": f"cat {step}.txt"})}, {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin Patch\n*** End Patch\n", "status": "completed"},
                   {"type": "local_shell_call", "status": "completed", "action": {"type": "exec", "command": ["ls", str(step)], "timeout_ms": 9}}]
            calls = [{**own[step // 2 % 3], "call_id": f"call_{step}"}]
            answer += calls
        for i, call in enumerate(calls):
            said = f"step {step}.{i} said {hashlib.sha256(bytes([step, i])).hexdigest()[:12]}"
            kind = {"custom_tool_call": "custom_tool_call_output"}.get(call["type"], "function_call_output")
            answer.append({"type": kind, "call_id": call["call_id"], "output": [{"type": "input_text", "text": said}, {"type": "input_image", "image_url": f"data:image/png;base64,{DATA}"}] if step == WITH_IMAGE else said})
            self.said.append(said)
        if step == LATE:
            answer += [self.message("developer", "<permissions instructions>Ask first.</permissions instructions>"), self.message("user", "Go on."),
                       {"type": "agent_message", "author": "/root/worker", "recipient": "/root", "content": [{"type": "input_text", "text": "Done: "}, {"type": "encrypted_content", "encrypted_content": "the total is 5"}]}]
        return answer, usage

    def loop(self, items):
        before, self.said = None, []
        for step in range(STEPS):
            answer, usage = self.step(step, items)
            self.check_cached(step, usage, before, said if step else [])
            said, self.said, before = self.said, [], usage[0]
            items += answer
        return items

    def test_twenty_steps_overflow_and_compaction(self):
        items = self.loop(self.start())
        full = items + [self.message("user", "word " * 8000)]
        (*_, failed) = events = self.events_of("/v1/responses", self.body(full), self.HEADERS, True)
        self.assertEqual(events[0]["type"], "response.created")
        self.assertEqual((failed["type"], failed["response"]["status"], failed["response"]["error"]["code"]), ("response.failed", "failed", "context_length_exceeded"))  # all that Codex compacts on
        status, text = self.send("/v1/responses", self.body(full), {}, False)  # other clients
        self.assertEqual((status, json.loads(text)["error"]["code"]), (400, "context_length_exceeded"))
        status, text = self.send("/v1/responses", self.body(full, stream=False), self.HEADERS, False)
        self.assertEqual((status, json.loads(text)["error"]["code"]), (400, "context_length_exceeded"))
        summary, (n_full, _) = self.ask(items + [self.message("user", self.SUMMARIZE)], 0)
        compacted = self.start() + [self.message("user", "Another language model started to solve this problem:\n" + str(summary)[:200])]
        _, (n, _) = self.ask(compacted, 1)
        self.assertLess(n, n_full // 2)
        self.ask([{"type": "compaction", "encrypted_content": "gAAAA"}, {"type": "context_compaction", "encrypted_content": "gAAAA"}, *compacted], 2)

    def test_tools_in_the_input(self):
        answer, _ = self.ask([{"type": "additional_tools", "role": "developer", "tools": [{"type": "namespace", "name": "functions", "tools": [self.PATCH, self.SHELL]}, self.TEAM]}, *self.start()], 0,
                             tool_choice={"type": "function", "namespace": "collaboration", "name": "list_agents"}, reasoning={"context": "all_turns", "effort": "low"})
        self.assertEqual([(i["namespace"], i["name"]) for i in answer], [("collaboration", "list_agents")])


class ClaudeCode(Agent):
    PATH = "/v1/messages?beta=true"
    HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,prompt-caching-scope-2026-01-05,effort-2025-11-24",
               "anthropic-dangerous-direct-browser-access": "true", "x-app": "cli", "user-agent": "claude-cli/2.1.177 (external, cli)", "x-stainless-lang": "js", "x-stainless-retry-count": "0", "x-api-key": "none"}
    CACHED = {"cache_control": {"type": "ephemeral"}}
    TOOLS = [{"name": "Bash", "description": "Executes a bash command.", "input_schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema(["command"], command={**TEXT, "description": "The command"}, timeout={"type": "number"}, run_in_background={"type": "boolean"})}},
             {"name": "WebFetch", "description": "Fetches a page.", "input_schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema(["url", "prompt"], url={**TEXT, "format": "uri"}, prompt=TEXT)}},
             {"name": "Read", "description": "Reads a file.", "input_schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema(["file_path"], file_path=TEXT, offset={"type": "integer", "minimum": 0, "maximum": 9007199254740991}, limit={"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991})}},
             {"name": "mcp__plugin_atlassian-with-a-long-name_server__list_everything_there_is_to_list", "description": "Lists.", "input_schema": {"type": "object"}},
             {"name": "TodoRead", "description": "Reads the list.", "input_schema": schema()}, {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}]

    def body(self, step, messages, **more):
        billing = f"x-anthropic-billing-header: cc_version=2.1.177.{step:03x}; cc_entrypoint=cli; cch={hashlib.sha256(bytes([step])).hexdigest()[:5]};"
        system = [{"type": "text", "text": billing}, {"type": "text", "text": "You are Claude Code, Anthropic's official CLI for Claude.", **self.CACHED}, {"type": "text", "text": "You are an interactive agent. Be brief.", **self.CACHED}]
        return {"model": "claude-opus-4-8", "max_tokens": 32000, "system": system, "messages": messages, "tools": self.TOOLS, "metadata": {"user_id": "user_1_account__session_2"}, "thinking": {"type": "adaptive"},
                "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, "output_config": {"effort": "medium"}, "stream": True, **more}

    def ask(self, step, messages, **more):
        """(blocks of the answer, (input tokens, cached))."""
        blocks, usage = [], {}
        for event in self.events_of(self.PATH, self.body(step, messages, **{"max_tokens": 120, **more}), self.HEADERS, step % 3 == 0):
            if event["type"] == "message_start":
                usage = event["message"]["usage"]
            elif event["type"] == "content_block_start":
                blocks.append({**event["content_block"], "json": ""})
            elif event["type"] == "content_block_delta":
                delta = event["delta"]
                key = {"text_delta": "text", "input_json_delta": "json", "thinking_delta": "thinking"}[delta["type"]]
                blocks[-1][key] += delta["partial_json" if key == "json" else key]
            elif event["type"] == "message_delta":
                self.assertIn(event["delta"]["stop_reason"], ("end_turn", "max_tokens", "tool_use"))
                usage = {**usage, **event["usage"]}
        for block in blocks:
            text = block.pop("json")
            if block["type"] == "tool_use":
                block["input"] = json.loads(text or "{}")
        self.assertEqual(event["type"], "message_stop")
        return blocks, (usage["input_tokens"] + usage["cache_read_input_tokens"], usage["cache_read_input_tokens"])

    def test_twenty_steps_overflow_and_compaction(self):
        reminder = {"type": "text", "text": "<system-reminder>\nToday is Thursday.\n</system-reminder>"}
        messages = [{"role": "user", "content": [reminder, {"type": "text", "text": "Find the total.", **self.CACHED}]}]
        self.ask(0, [{"role": "user", "content": "quota"}], max_tokens=1)  # as it begins
        before, said = None, []
        for step in range(STEPS):
            forced = {} if step % 2 else {"tool_choice": {"type": "tool", "name": "TodoRead"}}
            blocks, usage = self.ask(step, messages, **forced)
            self.check_cached(step, usage, before, said)
            before, said = usage[0], [f"step {step} said {hashlib.sha256(bytes([step])).hexdigest()[:12]}"]
            calls = [b for b in blocks if b["type"] == "tool_use"]
            if not step % 2:
                self.assertEqual([(c["name"], c["input"]) for c in calls], [("TodoRead", {})])
            blocks = [b for b in blocks if b.get("text") != ""]
            if not calls:
                calls = [{"type": "tool_use", "id": f"toolu_{step}", "name": "Bash", "input": {"command": f"cat {step}.txt"}}]
                blocks += calls
            result = [{"type": "text", "text": said[0]}]
            if step == WITH_IMAGE:
                result.append({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}})
            messages += [{"role": "assistant", "content": blocks},
                         {"role": "user", "content": [{"type": "tool_result", "tool_use_id": c["id"], "content": result if step % 3 else said[0], **({"is_error": True} if step == 3 else {}), **self.CACHED} for c in calls] + [reminder]}]
            if step == LATE:
                messages.append({"role": "system", "content": [{"type": "text", "text": "The user is away: ask nothing."}]})
        status, text = self.send("/v1/messages/count_tokens?beta=true", {k: v for k, v in self.body(0, messages).items() if k in ("model", "messages", "system", "tools", "thinking")}, self.HEADERS, False)
        n_full = json.loads(text)["input_tokens"]
        self.assertGreater(n_full, before)
        status, text = self.send(self.PATH, self.body(0, messages + [{"role": "user", "content": "word " * 8000}]), self.HEADERS, True)
        error = json.loads(text)
        self.assertEqual((status, error["type"], error["error"]["type"]), (400, "error", "invalid_request_error"))
        self.assertRegex(error["error"]["message"], r"^prompt is too long: \d+ tokens > \d+ maximum$")
        summary, _ = self.ask(1, messages + [{"role": "user", "content": "Your task is to create a detailed summary of the conversation so far."}])
        compacted = [{"role": "user", "content": [reminder, {"type": "text", "text": "This session is being continued from a previous conversation that ran out of context. The summary:\n" + str(summary)[:200]}]}]
        _, (n, _) = self.ask(2, compacted)
        self.assertLess(n, n_full // 2)


if __name__ == "__main__":
    unittest.main()
