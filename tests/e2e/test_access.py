"""Who may ask `vlcache serve`: keys, tenants, hosts, origins."""
import signal
import time
import unittest

from program import PAGE, ProgramTest
from test_server import FORM, Server, about, form

ALICE, BOB, BOB_TOO = "alices-key-0123456789", "bobs-key-0123456789", "bobs-other-key-0123456789"


def bearer(key):
    return {"authorization": "Bearer " + key}


class Keys(Server):
    @classmethod
    def prepare(cls, folder):
        cls.keys = folder / "keys"
        cls.write_keys()
        cls.FLAGS = ("--api-keys", str(cls.keys))

    @classmethod
    def write_keys(cls, more=""):
        cls.keys.write_text(f"# keys\n{ALICE} alice admin\n{BOB} bob\n{BOB_TOO} bob\n{more}")
        cls.keys.chmod(0o600)

    def test_a_key_is_required(self):
        for headers in ({}, bearer("wrong-key-0123456789"), {"x-api-key": "wrong"}, {"authorization": "Basic " + BOB}):
            for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/metrics"), ("POST", "/v1/cache/reset"), ("GET", "/nothing")):
                r = self.answer(method, path, headers=headers)
                self.assertEqual(r.status, 401, path)
                self.assertEqual(r.getheader("www-authenticate"), "Bearer")
                self.assertIn(b'"code":"invalid_api_key"', r.text)
        self.assertEqual(self.call("GET", "/health")[0], 200)
        self.assertEqual(self.call("GET", "/v1/models", headers=bearer(BOB))[0], 200)
        self.assertEqual(self.call("GET", "/v1/models", headers={"x-api-key": BOB})[0], 200)

    def test_tenants_share_no_names_of_images(self):
        named = about(PAGE)
        named["messages"][0]["content"][0]["uuid"] = "invoice"
        alone = {**named, "messages": [{"role": "user", "content": [{"type": "image_url", "uuid": "invoice"}, {"type": "text", "text": "What is the TOTAL?"}]}]}
        expected = self.chat(named, bearer(BOB))["choices"]
        for key, status in ((BOB, 200), (BOB_TOO, 200), (ALICE, 404)):
            found, answer = self.call("POST", "/v1/chat/completions", alone, bearer(key))
            self.assertEqual(found, status, answer)
        self.assertEqual(self.chat(alone, bearer(BOB))["choices"], expected)
        self.assertEqual(self.call("POST", "/v1/cache/reset", headers=bearer(ALICE))[0], 200)
        self.assertEqual(self.call("POST", "/v1/chat/completions", alone, bearer(BOB))[0], 404)

    def test_tenants_share_no_uploads(self):
        self.assertEqual(self.call("POST", "/v1/files", form(b"x"), FORM)[0], 401)
        id = self.call("POST", "/v1/files", form(b"x"), {**FORM, **bearer(BOB)})[1]["id"]
        for key, status in ((BOB_TOO, 200), (ALICE, 404)):
            listed = self.call("GET", "/v1/files", headers=bearer(key))[1]["data"]
            self.assertEqual([file["id"] for file in listed], [id] if status == 200 else [])
            for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")) if status == 404 else (("GET", ""),):
                self.assertEqual(self.call(method, f"/v1/files/{id}{path}", headers=bearer(key))[0], status)
        self.assertEqual(self.call("DELETE", f"/v1/files/{id}", headers=bearer(BOB))[0], 200)

    def test_tenants_share_no_cache(self):
        def ask(key, question, **more):
            answer = self.chat(about(PAGE, question, vlcache={"explain": True, "reuse": "vlcache"}, **more), bearer(key))
            cache = answer["vlcache"]["cache"]
            return answer["usage"]["prompt_tokens_details"]["cached_tokens"], cache["images"][0]["source"], cache["images"][0]["encoder"]

        self.assertEqual(self.call("POST", "/v1/cache/reset", headers=bearer(ALICE))[0], 200)
        question = "What is the NAME?"
        self.assertEqual(ask(BOB, question), (0, "computed", "computed"))
        self.assertGreater(ask(BOB, question)[0], 256)
        self.assertGreater(ask(BOB_TOO, question)[0], 256)  # another key of the same tenant
        self.assertEqual(ask(ALICE, question), (0, "computed", "computed"))
        self.assertGreater(ask(ALICE, question)[0], 256)
        self.assertEqual(ask(ALICE, question, cache_salt="a project"), (0, "computed", "computed"))
        self.assertGreater(ask(ALICE, question, cache_salt="a project")[0], 256)
        self.assertEqual(ask(BOB, question, cache_salt="a project"), (0, "computed", "computed"))

    def test_admins_pin_and_drop_images(self):
        say = lambda path, body=None, key=ALICE: self.call("GET" if path == "entries" else "POST", "/v1/cache/" + path, body, bearer(key))
        entries = lambda: {e["id"]: e for e in say("entries")[1]["data"]}
        self.assertEqual(say("reset")[0], 200)
        ask = lambda: self.chat(about(PAGE, "What is the NAME?", vlcache={"reuse": "vlcache"}), bearer(BOB))["vlcache"]["cache"]["images"][0]
        known = ask()["hash"]
        self.assertEqual(list(entries()), [known])
        self.assertTrue(all(entries()[known][what] > 0 for what in ("kv_bytes", "embeddings_bytes", "uses")))
        for path, body in (("entries", None), ("pin", {"id": known}), ("drop", {"id": known})):
            self.assertEqual(say(path, body, BOB)[0], 403)
        self.assertEqual(say("pin", {"id": known}), (200, {"id": known, "pinned": True}))
        self.assertTrue(entries()[known]["pinned"])
        self.assertEqual(say("pin", {"id": known, "pinned": False})[0], 200)
        self.assertFalse(entries()[known]["pinned"])
        for path in ("pin", "drop"):
            status, gone = say(path, {"id": known[::-1]})
            self.assertEqual((status, gone["error"]["code"]), (404, "not_found"))
            for wrong in ({}, {"id": 3}, {"id": known[:-1]}, {"id": "x" + known[1:]}, []):
                self.assertEqual(say(path, wrong)[0], 400, wrong)
        self.assertEqual(say("pin", {"id": known, "pinned": "yes"})[0], 400)
        self.assertEqual(ask()["source"], "prefix")
        self.assertGreater(say("drop", {"id": known})[1]["freed_bytes"], 0)
        self.assertEqual(entries(), {})
        again = ask()
        self.assertEqual((again["source"], again["encoder"]), ("computed", "computed"))

    def test_counts_of_all_tenants_are_for_admins(self):
        for path in ("/metrics", "/v1/cache/stats"):
            self.assertEqual(self.call("GET", path, headers=bearer(BOB))[0], 403, path)
            self.assertEqual(self.call("GET", path, headers=bearer(ALICE))[0], 200, path)

    def test_only_admins_reset_caches(self):
        self.chat(about(PAGE, "Who?"), bearer(BOB))
        self.assertEqual(self.call("POST", "/v1/cache/reset", headers=bearer(BOB))[0], 403)
        status, answer = self.call("POST", "/v1/cache/reset", headers=bearer(ALICE))
        self.assertEqual(status, 200)
        self.assertGreater(answer["freed_bytes"], 0)
        self.assertEqual(self.chat(about(PAGE, "Who?"), bearer(BOB))["usage"]["prompt_tokens_details"]["cached_tokens"], 0)

    def test_keys_are_reloaded(self):
        new = "carols-key-0123456789"
        self.assertEqual(self.call("GET", "/v1/models", headers=bearer(new))[0], 401)
        for text, status in ((f"{new} carol\n", 200), ("short\n", 200), ("", 401)):  # what cannot be read changes nothing
            self.write_keys(text)
            self.process.send_signal(signal.SIGHUP)
            for _ in range(100):
                time.sleep(0.05)
                if self.call("GET", "/v1/models", headers=bearer(new))[0] == status:
                    break
            time.sleep(0.3)
            self.assertEqual(self.call("GET", "/v1/models", headers=bearer(new))[0], status, text)


class Browsers(Server):
    FLAGS = ("--allowed-host", "chat.example", "--cors", "https://app.example,https://other.example")

    def test_dns_rebinding(self):
        for host in ("evil.example", f"evil.example:{self.port}", "127.0.0.1.evil.example", "chat.example.evil"):
            status, answer = self.call("GET", "/v1/models", headers={"host": host})
            self.assertEqual((status, answer["error"]["code"]), (403, "host_not_allowed"), host)
        for host in ("localhost", f"127.0.0.1:{self.port}", "[::1]", "chat.example:443"):
            self.assertEqual(self.call("GET", "/v1/models", headers={"host": host})[0], 200, host)

    def test_pages_of_other_sites(self):
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
        for origin in ("https://evil.example", "null", "http://app.example", f"http://localhost:{self.port + 1}"):
            for kind in ("text/plain", "application/json"):
                r = self.answer("POST", "/v1/chat/completions", body, {"origin": origin, "content-type": kind})
                self.assertEqual(r.status, 403, origin)
                self.assertIsNone(r.getheader("access-control-allow-origin"))
            r = self.answer("GET", "/v1/models", headers={"origin": origin})
            self.assertIsNone(r.getheader("access-control-allow-origin"))
            r = self.answer("OPTIONS", "/v1/chat/completions", headers={"origin": origin, "access-control-request-method": "POST"})
            self.assertIsNone(r.getheader("access-control-allow-origin"))
        self.assertEqual(self.answer("POST", "/v1/chat/completions", body, {"origin": f"http://127.0.0.1:{self.port}"}).status, 200)

    def test_pages_of_allowed_sites(self):
        asks = {"origin": "https://other.example", "access-control-request-method": "POST", "access-control-request-headers": "content-type,x-stainless-os"}
        r = self.answer("OPTIONS", "/v1/chat/completions", headers=asks)
        self.assertEqual(r.status, 204)
        self.assertEqual(r.getheader("access-control-allow-headers"), "content-type,x-stainless-os")
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
        for stream in (False, True):
            r = self.answer("POST", "/v1/chat/completions", {**body, "stream": stream}, {"origin": "https://app.example"})
            self.assertEqual((r.status, r.getheader("access-control-allow-origin"), r.getheader("vary")), (200, "https://app.example", "origin"))
        r = self.answer("POST", "/v1/chat/completions", "{", {"origin": "https://app.example"})
        self.assertEqual((r.status, r.getheader("access-control-allow-origin")), (400, "https://app.example"))


class Flags(ProgramTest):
    def test_invalid_flags(self):
        model = ("serve", "-m", "models/none", "--port", "0")
        self.fails(*model, "--cors", "chat.example", says=["--cors", "https://"])
        self.fails(*model, "--allowed-host", "http://x", says="--allowed-host")
        self.fails(*model, "--api-keys", self.folder / "none", says="none")
        keys = self.write("keys", "secret\n")
        keys.chmod(0o600)
        self.fails(*model, "--api-keys", keys, says=["keys: line 1", "16"])
        self.fails(*model, "--image-url-prefix", "https://h/a", says=["--image-url-prefix", "ends with /"])
        self.fails(*model, "--image-path-prefix", self.folder / "none", says=["--image-path-prefix", "folder"])
        self.fails(*model, "--access-log", keys / "log", says=["--access-log", "Not a directory"])


if __name__ == "__main__":
    unittest.main()
