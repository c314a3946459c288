"""A browser for the page's tests: headless Chromium in front of a real server, with a proxy between that can misbehave."""
import atexit
import functools
import http.client
import http.server
import json
import os
import pathlib
import shutil
import sys
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/e2e"))
from program import MODEL, PAGE  # noqa: E402
from test_server import Server, about  # noqa: E402

DEMO = MODEL / "demo"
TOTAL, DATE = "What is the TOTAL?", "What is the DATE?"
RIGHT = {TOTAL: "TOTAL: 435.75", DATE: "DATE: 2026-03-14"}  # models/tinydoc/demo/questions.jsonl
CHROMIUM = shutil.which("chromium")
try:
    from playwright.sync_api import expect, sync_playwright
    expect.set_options(timeout=20_000)  # a machine that does other things, too
    WHY_NOT = "" if CHROMIUM else "there is no chromium"
except ImportError:
    WHY_NOT = "there is no playwright (tools/install_deps.sh)"


@functools.cache
def chromium():
    """One for all classes of a process: what a test leaves behind is in its context."""
    playwright = sync_playwright().start()
    atexit.register(playwright.stop)
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
    atexit.register(browser.close)
    return browser


class Proxy:
    """Hands requests on to a server, and answers back; what goes wrong on the way is set by its attributes."""

    def __init__(self, port, listen=0):
        self.server_port, self.delay, self.cut_after, self.refuse, self.key = port, 0, None, None, None
        self.more, self.bodies, self.paths = {}, [], []  # fields that requests for answers get; those that the page has sent
        self.left = 0  # answers whose client has gone before their end
        self.answering, self.most_answering = set(), 0  # clients whose answers have not reached their end; the most at once
        self.script = self.props = None  # events that stand for an answer; facts of a model that stand for the server's
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                proxy.forward(self)

            do_POST = do_GET

            def log_message(self, *args):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", listen), Handler)
        self.http.daemon_threads = True
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()

    def forward(self, client):
        body = client.rfile.read(int(client.headers.get("content-length", 0)))
        self.paths.append(client.path)
        answers = client.path == "/v1/chat/completions"
        if answers:
            self.bodies.append(json.loads(body))
            body = json.dumps({**self.bodies[-1], **self.more}).encode()
        if client.path.startswith("/v1") and self.key and client.headers.get("authorization") != f"Bearer {self.key}":
            return self.send(client, 401, {"error": {"message": "a key is needed", "type": "invalid_request_error", "param": None, "code": None}})
        if answers and self.refuse:
            return self.send(client, *self.refuse)
        if answers and self.script:
            return self.play(client)
        if client.path == "/props" and self.props:
            return self.send(client, 200, self.props)
        server = http.client.HTTPConnection("127.0.0.1", self.server_port, timeout=60)
        if answers:
            self.answering.add(client)
            self.most_answering = max(self.most_answering, len(self.answering))
        try:
            server.request(client.command, client.path, body or None, {k: v for k, v in client.headers.items() if k.lower() in ("content-type", "if-none-match")})
            self.forward_reply(client, server.getresponse())
        except OSError:  # one of the two has gone
            self.left += 1
            client.close_connection = True
        finally:
            self.answering.discard(client)
            server.close()

    def forward_reply(self, client, reply):
        client.send_response(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in ("connection", "transfer-encoding"):
                client.send_header(name, value)
        client.end_headers()
        if reply.getheader("content-type") != "text/event-stream":
            client.wfile.write(reply.read())
            return
        n_words = 0
        for event in iter(reply.readline, b""):
            n_words += b'"content":"' in event
            if self.cut_after is not None and n_words > self.cut_after:
                return
            time.sleep(self.delay if event.strip() else 0)
            if b"[DONE]" in event:
                self.answering.discard(client)
            client.wfile.write(event)

    def play(self, client):
        """An answer of our own: each of `script` is a delta, a whole event, or a threading.Event to wait for."""
        client.send_response(200)
        client.send_header("content-type", "text/event-stream")
        client.end_headers()
        for item in self.script:
            if isinstance(item, threading.Event):
                item.wait(20)
                continue
            event = item if "choices" in item else {"choices": [{"index": 0, "delta": item, "finish_reason": None}]}
            client.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            time.sleep(self.delay)
        client.wfile.write(b"data: [DONE]\n\n")

    @staticmethod
    def send(client, status, answer, headers=()):
        client.send_response(status)
        client.send_header("content-type", "application/json")
        for name, value in headers:
            client.send_header(name, value)
        client.end_headers()
        client.wfile.write(json.dumps(answer).encode())


@unittest.skipIf(WHY_NOT, WHY_NOT)
class PageTest(Server):
    """A fresh browser profile for each test, and nothing in the console afterwards that a test has not expected."""

    VIEWPORT = {"width": 1200, "height": 850}
    SCHEME = "light"
    TOUR = False  # whether the page offers its tour

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.chromium = chromium()

    def setUp(self):
        super().setUp()
        self.proxy = Proxy(self.port)
        self.addCleanup(self.proxy.close)
        self.base = f"http://127.0.0.1:{self.proxy.port}/"
        self.context = self.chromium.new_context(viewport=self.VIEWPORT, color_scheme=self.SCHEME)
        self.context.set_default_timeout(20_000)
        self.addCleanup(self.context.close)
        self.complaints, self.urls = [], []
        if not self.TOUR:
            self.context.add_init_script("try { localStorage.setItem('vlcache-tour', 'over'); } catch {}")
        self.page = self.open()

    def open(self):
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("request", lambda request: self.urls.append(request.url))
        page.goto(self.base)
        page.wait_for_selector("html[data-ready]")
        return page

    def tearDown(self):
        self.shot(self.id().split(".")[-1])
        self.assertEqual([c for c in self.complaints if not c.startswith("Failed to load resource")], [])
        for url in self.urls:
            self.assertTrue(url.startswith((self.base, "blob:", "data:")), url)
        super().tearDown()

    def shot(self, name):
        """For eyes: VLCACHE_SHOTS=FOLDER."""
        if os.environ.get("VLCACHE_SHOTS"):
            self.page.screenshot(path=f"{os.environ['VLCACHE_SHOTS']}/{name}.png")

    # ---- what a person does -------------------------------------------------------------------------------------
    def attach(self, *paths):
        before = self.page.locator("#attached li").count()
        self.page.set_input_files("#files", [str(p) for p in paths])
        expect(self.page.locator("#attached li")).to_have_count(before + len(paths))

    def send(self, question):
        self.page.fill("#question", question)
        self.page.press("#question", "Enter")

    def ask(self, question, *images):
        """Asks and waits until the answer has ended; its text."""
        if images:
            self.attach(*images)
        n = self.page.locator(".answers").count()
        self.send(question)
        expect(self.page.locator(".answers")).to_have_count(n + 1)
        self.wait_until_ended()
        return self.answer_text()

    def keep_busy(self):
        """A request of somebody else's that takes a while, until its connection is closed."""
        other = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        other.request("POST", "/v1/chat/completions", json.dumps({**about(PAGE, "Read."), "ignore_eos": True, "max_tokens": 3700}))
        return other

    def wait_until(self, holds):
        end = time.monotonic() + 20
        while not holds():
            self.assertLess(time.monotonic(), end, "it does not come about")
            time.sleep(0.02)

    def wait_until_ended(self):
        expect(self.page.locator("#send")).to_have_text("Send")
        expect(self.page.locator(".answers [aria-busy=true]")).to_have_count(0)

    def answer_text(self, number=-1):
        return self.page.locator(".answer .text").all()[number].inner_text().strip()

    def choose(self, **fields):
        """Fills fields of the settings: a_kv="full" is a.kv."""
        self.page.click("#open-settings")
        self.page.locator("#settings details").evaluate("(fold) => (fold.open = true)")
        for name, value in fields.items():
            field = self.page.locator(f'#settings [name="{name.replace("_", ".")}"]')
            field.set_checked(value) if isinstance(value, bool) else field.fill(value)
        self.page.click("#settings button.main")
        expect(self.page.locator("#settings")).not_to_be_visible()

    def assert_in_view(self, *selectors):
        """All that they name lies within what the thread shows, and nothing covers it."""
        seen = self.page.locator("#thread").bounding_box()
        for selector in selectors:
            self.assertGreater(self.page.locator(selector).count(), 0, selector)
            for node in self.page.locator(selector).all():
                box = node.bounding_box()
                self.assertTrue(box["y"] >= seen["y"] and box["y"] + box["height"] <= seen["y"] + seen["height"], (selector, box, seen))
                for at in ("top + 4", "bottom - 4"):
                    on_top = node.evaluate(f"(n) => {{ const b = n.getBoundingClientRect(); return n.contains(document.elementFromPoint((b.left + b.right) / 2, b.{at})); }}")
                    self.assertTrue(on_top, (selector, at))

    def open_card(self, number=-1, fold="Figures"):
        card = self.page.locator(".card").all()[number]
        card.locator(f"summary:text-is('{fold}')").click()
        return card

    def say(self, *deltas):
        """The next answers, whatever is asked: texts and deltas."""
        self.proxy.script = [{"content": d} if isinstance(d, str) else d for d in deltas]
