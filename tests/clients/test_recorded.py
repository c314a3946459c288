"""What programs of today have sent (tools/clients/run.py --record), sent again."""
import base64
import json
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/e2e"))
from program import PAGE  # noqa: E402
from test_server import Server  # noqa: E402

RECORDED = [json.loads(line) for line in (pathlib.Path(__file__).parent / "recorded.jsonl").read_text().splitlines()]
DATA = base64.b64encode(PAGE.read_bytes()).decode()


def forces_a_call(body):
    choice = body.get("tool_choice")
    return choice in ("required", "any") or isinstance(choice, dict) and choice.get("type") in ("any", "tool", "function")


def asks_about_the_page(body):
    """And nothing else: tinydoc does not read after texts that it was not trained on."""
    turns = body.get("messages", body.get("input"))
    return "@PAGE@" in str(body) and isinstance(turns, list) and len(turns) == 1 and "What is the TOTAL?" in str(turns) and "system" not in body and not body.get("instructions")


def has_a_format(body):
    return "response_format" in body or "output_config" in body or "format" in body.get("text", {})


class Recorded(Server):
    def test_all_are_answered(self):
        programs = {r["program"] for r in RECORDED}
        self.assertGreaterEqual(len(programs), 14, programs)
        for request in RECORDED:
            with self.subTest(program=request["program"], body=str(request["body"])[:200]):
                body = json.loads(json.dumps(request["body"]).replace("@PAGE@", DATA))
                if not any(limit in body for limit in ("max_tokens", "max_completion_tokens", "max_output_tokens")):
                    body["max_tokens"] = 32  # such answers may go on to the end of the context
                response = self.server.answer("POST", request["path"], body)
                text = response.text if isinstance(response.text, str) else response.text.decode()
                self.assertEqual(response.status, 200, text[:300])
                if forces_a_call(body):
                    self.assertRegex(text, r'"(tool_use|tool_calls|function_call)"')
                elif asks_about_the_page(request["body"]) and not has_a_format(body) and not body.get("stream"):
                    self.assertIn("435.75", text)


if __name__ == "__main__":
    unittest.main()
