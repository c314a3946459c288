"""Open WebUI, asked as its page does: defaults, the built-in tools on, an image with the first message; then a follow-up, and the titles that it has made."""
import json
import os
import socket
import subprocess
import time
import urllib.request
import uuid

from .command_lines import BIN, CommandLine
from .common import DATA_URI, MODEL, QUESTION, SEES, URL, check, right

WAIT_S = 900


class OpenWebUi(CommandLine):
    CASES = ("first_message", "follow_up", "title")

    def __init__(self):
        super().__init__()
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        settings = {"DATA_DIR": str(self.folder), "HOME": str(self.folder), "OFFLINE_MODE": "True", "HF_HUB_OFFLINE": "1", "ENABLE_OLLAMA_API": "False", "OPENAI_API_BASE_URL": URL + "/v1", "OPENAI_API_KEY": "none",
                    "WEBUI_SECRET_KEY": "none", "RAG_EMBEDDING_ENGINE": "openai"}  # the engine: its default is a model from a hub
        self.process = subprocess.Popen([BIN / "open-webui", "serve", "--host", "127.0.0.1", "--port", str(self.port)], cwd=self.folder, env={**os.environ, **settings}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.token = None
        self.wait(lambda: self.call("GET", "/health"))
        self.token = self.call("POST", "/api/v1/auths/signup", {"name": "A", "email": "a@example.org", "password": "a-long-Password-1"})["token"]
        self.wait(lambda: any(m["id"] == MODEL for m in self.call("GET", "/api/models")["data"]))
        self.chat_id, self.last = None, None

    def __del__(self):
        self.process.terminate()

    def call(self, method, path, body=None):
        headers = {"content-type": "application/json", **({"authorization": f"Bearer {self.token}"} if self.token else {})}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", None if body is None else json.dumps(body).encode(), headers, method=method)
        with urllib.request.urlopen(request, timeout=WAIT_S) as response:
            return json.loads(response.read())

    def wait(self, found):
        for _ in range(WAIT_S):
            try:
                if result := found(): return result
            except OSError:
                if self.process.poll() is not None: raise
            time.sleep(1)
        raise TimeoutError(f"{found}")

    def chat_now(self):
        return self.call("GET", f"/api/v1/chats/{self.chat_id}")["chat"]

    def send(self, text, image=False):
        """The message of the answer, as the page's history then has it."""
        user, answer = str(uuid.uuid4()), str(uuid.uuid4())
        files = [{"type": "image", "url": DATA_URI}] if image else []
        said = {"id": user, "parentId": self.last, "childrenIds": [], "role": "user", "content": text, "files": files, "timestamp": int(time.time()), "models": [MODEL]}
        parts = [{"type": "text", "text": text}, *({"type": "image_url", "image_url": {"url": f["url"]}} for f in files)]
        tasks = {"title_generation": True, "tags_generation": True, "follow_up_generation": True} if self.last is None else {"follow_up_generation": True}
        self.chat_id = self.call("POST", "/api/chat/completions", {
            "stream": True, "model": MODEL, "messages": [{"role": "user", "content": parts if files else text}], "params": {"temperature": 0}, "tool_servers": [], "features": {"voice": False, "image_generation": False, "code_interpreter": False, "web_search": False},
            "variables": {"{{USER_NAME}}": "A"}, "session_id": "page", "id": answer, "parent_id": self.last, "user_message": said, "background_tasks": tasks, **({"chat_id": self.chat_id} if self.chat_id else {})})["chat_id"]
        self.last = answer
        def done():
            message = self.chat_now()["history"]["messages"].get(answer, {})
            return message if message.get("done") or message.get("error") else None
        message = self.wait(done)
        assert not message.get("error"), message["error"]
        return message

    def first_message(self): return right(self.send(QUESTION, image=SEES)["content"])
    def follow_up(self): return check(isinstance(self.send("What is the DATE?")["content"], str), "an answer")
    def title(self): return check(self.wait(lambda: self.chat_now().get("title")), "a title")
