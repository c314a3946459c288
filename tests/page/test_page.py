"""The page at / in a real browser: questions about real images, and what goes wrong on the way."""
import base64
import json
import pathlib
import struct
import time
import unittest
import zlib

from browser import DEMO, PAGE, PageTest, Proxy, WHY_NOT

if not WHY_NOT:
    from playwright.sync_api import expect

TOTAL, DATE = "What is the TOTAL?", "What is the DATE?"
RIGHT = {TOTAL: "TOTAL: 435.75", DATE: "DATE: 2026-03-14"}  # models/tinydoc/demo/questions.jsonl


class Questions(PageTest):
    def test_an_image_is_sent_unchanged_and_answered(self):
        self.assertEqual(self.ask(TOTAL, PAGE), RIGHT[TOTAL])
        body = self.proxy.bodies[-1]
        url = body["messages"][0]["content"][0]["image_url"]["url"]
        self.assertEqual(base64.b64decode(url.removeprefix("data:image/png;base64,")), PAGE.read_bytes())
        self.assertEqual((body["stream"], body["vlcache"]), (True, {"explain": True}))
        expect(self.page.locator(".question img")).to_have_js_property("naturalWidth", 224)
        expect(self.page.locator("#model")).to_have_text("tinydoc")
        expect(self.page.locator("nav li button")).to_have_text(TOTAL)

    def test_a_conversation_continues(self):
        self.ask(TOTAL, PAGE)
        self.assertEqual(self.ask(DATE), RIGHT[DATE])
        roles = [m["role"] for m in self.proxy.bodies[-1]["messages"]]
        self.assertEqual(roles, ["user", "assistant", "user"])
        self.assertEqual(self.proxy.bodies[-1]["messages"][1]["content"].strip(), RIGHT[TOTAL])
        expect(self.page.locator(".card").last).to_contain_text("prompt tokens reused")

    def test_two_images(self):
        self.assertEqual(self.ask("What is the GATE?", DEMO / "two-1.png", DEMO / "two-2.png"), "GATE: 42")
        card = self.open_card()
        expect(card.locator(".kept")).to_have_count(2)

    def test_an_answer_is_streamed_and_stopped(self):
        self.proxy.delay, self.proxy.more = 0.05, {"ignore_eos": True}  # to the end of the context: some 3,800 tokens
        self.attach(PAGE)
        self.send("Read the page.")
        text = self.page.locator(".answer .text")
        seen = set()
        self.wait_until(lambda: seen.add(text.inner_text()) or len(seen) > 3)
        expect(self.page.locator("#send")).to_have_text("Stop")
        self.assertEqual(self.proxy.left, 0)
        self.page.keyboard.press("Escape")
        self.wait_until_ended()
        self.wait_until(lambda: self.proxy.left == 1)
        self.wait_until_idle()  # nobody computes what nobody waits for
        expect(self.page.locator(".answer")).to_contain_text("Stopped.")
        stopped = text.inner_text()
        self.assertTrue(stopped and stopped.startswith("INV"[:len(stopped)]), stopped)
        time.sleep(0.5)
        self.assertEqual(text.inner_text(), stopped)
        self.proxy.delay, self.proxy.more = 0, {}
        self.page.click("text=Regenerate")
        expect(text).to_contain_text("LISBON")

    def test_the_send_button_stops_the_answer(self):
        self.proxy.delay = 0.15
        self.attach(PAGE)
        self.send("Read the page.")
        expect(self.page.locator(".answer .text")).to_contain_text("IN")
        self.page.click("#send")
        expect(self.page.locator(".answer")).to_contain_text("Stopped.")

    def test_regenerate_and_edit(self):
        self.ask(TOTAL, PAGE)
        self.ask(DATE)
        self.page.click("text=Regenerate")
        expect(self.page.locator("#send")).to_have_text("Send")
        self.wait_until_ended()
        self.assertEqual((self.page.locator(".answer").count(), self.answer_text()), (2, RIGHT[DATE]))
        self.page.locator("text=Edit").first.click()
        expect(self.page.locator("text=2 messages after it will be forgotten")).to_be_visible()
        editor = self.page.locator("textarea[aria-label='Edit the question']")
        editor.fill(DATE)
        editor.press("Enter")
        expect(self.page.locator(".answers")).to_have_count(1)
        expect(self.page.locator(".answer .text")).to_have_text(RIGHT[DATE])
        self.wait_until_ended()
        self.assertEqual(len(self.proxy.bodies[-1]["messages"]), 1)
        self.assertEqual(self.proxy.bodies[-1]["messages"][0]["content"][0]["type"], "image_url")

    def test_side_by_side(self):
        self.choose(a_kv="full", compare=True, b_kv="window", b_budget="0.3")
        self.ask(TOTAL, PAGE)
        self.assertEqual(self.page.locator(".answer h3").all_inner_texts(), ["full", "window 0.3"])
        self.assertEqual(self.answer_text(0), RIGHT[TOTAL])
        asked = sorted((b["vlcache"].get("kv"), b["vlcache"].get("kv_budget")) for b in self.proxy.bodies[-2:])
        self.assertEqual(asked, [("full", None), ("window", "0.3")])
        full, part = self.open_card(0), self.open_card(1)
        expect(full.locator(".kept-all figcaption")).to_contain_text("100 % of its 256 tokens are kept")
        expect(full.locator(".veil g rect")).to_have_count(256)
        kept = part.locator(".veil g rect").count()
        self.assertTrue(20 < kept < 100, kept)
        expect(part.locator("summary")).to_contain_text("→")  # KV before and after
        expect(full.locator("summary")).not_to_contain_text("→")
        expect(full.locator(".bar-of")).to_have_count(8)
        height = lambda card: float(card.locator(".bar-of").first.get_attribute("height"))
        self.assertAlmostEqual(height(part) / height(full), 0.3, delta=0.1)

    def test_the_card_says_where_kv_came_from(self):
        self.ask(TOTAL, PAGE)
        self.page.click("#new")
        self.ask(TOTAL, PAGE)
        card = self.open_card()
        expect(card.locator("dt:text-is('picture 1') + dd")).to_have_text("256 tokens there as a prefix")
        for words in ("first token", "tokens/s", "policy", "full", "at most", "after the prompt", "before its turn"):
            expect(card).to_contain_text(words)

    def test_settings_reach_the_server_and_stay(self):
        self.choose(system="Answer in a word.", temperature="0.5", maxTokens="3", a_reuse="off")
        self.ask("Read the page.", PAGE)
        body = self.proxy.bodies[-1]
        self.assertEqual(body["messages"][0], {"role": "system", "content": "Answer in a word."})
        self.assertEqual((body["temperature"], body["max_tokens"], body["vlcache"]["reuse"]), (0.5, 3, "off"))
        expect(self.page.locator(".card summary")).to_contain_text("cut at the limit of tokens")
        self.page.reload()
        self.page.click("#open-settings")
        expect(self.page.locator("[name=maxTokens]")).to_have_value("3")

    def test_images_shrink_only_on_demand(self):
        self.choose(shrink="112")
        self.attach(PAGE)
        expect(self.page.locator("#attached")).to_contain_text("112 × 112")
        self.choose(shrink="")
        self.attach(PAGE)
        expect(self.page.locator("#attached li").last).to_contain_text("224 × 224")


class Persistence(PageTest):
    def test_reloading_keeps_conversations_and_images(self):
        self.ask(TOTAL, PAGE)
        self.page.click("#new")
        self.ask("What color is the ring?", DEMO / "shapes.png")
        self.page.reload()
        expect(self.page.locator("nav li")).to_have_count(2)
        expect(self.page.locator(".answer .text")).to_have_text("purple")
        self.page.click(f"nav >> text={TOTAL}")
        expect(self.page.locator(".question img")).to_have_js_property("naturalWidth", 224)
        self.assertEqual(self.ask(DATE), RIGHT[DATE])  # the image is asked about once more
        card = self.open_card()
        expect(card.locator(".kept img")).to_have_js_property("naturalWidth", 224)

    def test_rename_export_delete(self):
        self.ask(TOTAL, PAGE)
        self.page.click("#rename")
        self.page.fill("#ask input", "The invoice")
        self.page.press("#ask input", "Enter")
        expect(self.page.locator("nav li")).to_have_text("The invoice")
        with self.page.expect_download() as download:
            self.page.click("#export")
        self.assertEqual(download.value.suggested_filename, "The-invoice.json")
        saved = json.loads(open(download.value.path()).read())
        image = saved["messages"][0]["pictures"][0]
        self.assertEqual(base64.b64decode(image["url"].split(",")[1]), PAGE.read_bytes())
        self.assertEqual(saved["messages"][1]["answers"][0]["text"].strip(), RIGHT[TOTAL])
        self.page.click("#delete")
        self.page.click("#ask >> text=Cancel")
        expect(self.page.locator("nav li")).to_have_count(1)
        self.page.click("#delete")
        self.page.click("#ask button.main")
        expect(self.page.locator("nav li")).to_have_count(0)
        self.page.reload()
        self.page.wait_for_selector("html[data-ready]")
        expect(self.page.locator("nav li")).to_have_count(0)
        left = self.page.evaluate("""async () => {
            const db = await new Promise((done) => { const r = indexedDB.open('vlcache'); r.onsuccess = () => done(r.result); });
            return new Promise((done) => { const r = db.transaction('pictures').objectStore('pictures').count(); r.onsuccess = () => done(r.result); });
        }""")
        self.assertEqual(left, 0)

    def test_an_exported_conversation_is_imported(self):
        self.choose(a_kv="snapkv", a_budget="0.5")
        self.ask(TOTAL, PAGE)
        with self.page.expect_download() as download:
            self.page.click("#export")
        saved = pathlib.Path(download.value.path()).read_text()
        self.page.click("#delete")
        self.page.click("#ask button.main")
        expect(self.page.locator("nav li")).to_have_count(0)
        for n in (1, 2):  # twice: two conversations, neither of which takes anything from the other
            self.import_file("invoice.json", saved)
            expect(self.page.locator("nav li")).to_have_count(n)
        self.page.click("#delete")
        self.page.click("#ask button.main")
        expect(self.page.locator("nav li")).to_have_count(1)
        self.page.reload()
        self.page.wait_for_selector("html[data-ready]")
        expect(self.page.locator("nav li")).to_have_text(TOTAL)
        expect(self.page.locator(".question img")).to_have_js_property("naturalWidth", 224)
        self.assertEqual(self.answer_text(), RIGHT[TOTAL])
        card = self.open_card()
        expect(card.locator(".kept")).to_have_count(1)
        expect(card.locator("svg.bars")).to_have_count(1)
        self.choose(a_kv="", a_budget="")
        self.assertEqual(self.ask(DATE), RIGHT[DATE])
        sent = self.proxy.bodies[-1]["messages"][0]["content"][0]["image_url"]["url"]
        self.assertEqual(base64.b64decode(sent.split(",")[1]), PAGE.read_bytes())

    def import_file(self, name, text):
        self.page.set_input_files("#import-files", {"name": name, "mimeType": "application/json", "buffer": text.encode()})

    def test_invalid_conversation_files(self):
        image = lambda url: {"messages": [{"role": "user", "text": "?", "pictures": [{"id": "1", "name": "p", "url": url}]}]}
        for content in ("{", "7", "null", "[]", "{}", '{"messages": 1}', '{"messages": []}', '{"messages": [null]}',
                        '{"messages": [{"role": "assistant", "answers": []}]}', '{"messages": [{"role": "user", "pictures": [{}]}]}',
                        json.dumps(image("data:image/png;base64,!")), json.dumps(image("data:image/png;base64,AAAA"))):
            self.page.evaluate("document.getElementById('notice').textContent = ''")
            self.import_file("wrong.json", content)
            expect(self.page.locator("#notice")).to_contain_text("wrong.json is no conversation that this page has exported")
            expect(self.page.locator("nav li")).to_have_count(0)
        # What a card cannot show is left out; text stays text.
        answer = {"text": "<b>It</b> is 7.", "state": "running", "usage": {"prompt_tokens": "many"}, "served": {"kv": []}, "seen": 3, "pictures": ["gone"]}
        self.import_file("odd.json", json.dumps({"name": 5, "messages": [{"role": "user", "text": 4}, {"role": "assistant", "answers": [answer]}]}))
        expect(self.page.locator("nav li")).to_have_text("odd.json")
        self.assertEqual(self.answer_text(), "<b>It</b> is 7.")
        expect(self.page.locator(".answer")).to_contain_text("Stopped.")

    def test_an_answer_continues_while_another_conversation_is_open(self):
        self.proxy.delay = 0.05
        self.attach(PAGE)
        self.send("Read the page.")
        expect(self.page.locator(".answer .text")).to_contain_text("INV")
        self.page.click("#new")
        expect(self.page.locator(".answer")).to_have_count(0)
        expect(self.page.locator("nav .cursor")).to_have_count(0)
        self.page.click("nav >> text=Read the page.")
        expect(self.page.locator(".answer .text")).to_contain_text("LISBON")

    def test_a_page_closed_during_an_answer(self):
        self.proxy.delay = 0.3
        self.attach(PAGE)
        self.send("Read the page.")
        expect(self.page.locator(".answer .text")).to_contain_text("INV")
        self.page.wait_for_timeout(4000)  # it is saved every two seconds
        self.page.reload()
        expect(self.page.locator(".answer")).to_contain_text("Stopped.")
        expect(self.page.locator(".answer .text")).to_contain_text("INV")


class Failures(PageTest):
    def test_the_server_stops_and_restarts(self):
        self.ask(TOTAL, PAGE)
        self.proxy.close()
        self.ask(DATE)
        expect(self.page.locator(".answer").last).to_contain_text("The server does not answer. Is it running?")
        again = Proxy(self.port, self.proxy.port)
        self.addCleanup(again.close)
        self.page.click("button:text-is('Try again')")
        expect(self.page.locator(".answer .text").last).to_have_text(RIGHT[DATE])

    def test_the_connection_ends_during_an_answer(self):
        self.proxy.cut_after = 12
        self.ask("Read the page.", PAGE)
        expect(self.page.locator(".answer")).to_contain_text("The connection ended before the answer did.")
        self.assertTrue(self.answer_text().startswith("INV"), self.answer_text())

    def test_a_key_is_requested(self):
        self.proxy.key = "secret"
        self.attach(PAGE)
        self.send(TOTAL)
        expect(self.page.locator("#ask")).to_contain_text("This server wants a key")
        self.page.fill("#ask input", "wrong")
        self.page.press("#ask input", "Enter")
        expect(self.page.locator("#ask input")).to_have_value("")
        self.page.fill("#ask input", "secret")
        self.page.press("#ask input", "Enter")
        expect(self.page.locator(".answer .text")).to_have_text(RIGHT[TOTAL])
        self.page.reload()
        self.wait_until_ended()
        self.assertEqual(self.ask(DATE), RIGHT[DATE])  # it stays for the tab's session
        self.assertEqual(self.page.evaluate("localStorage.length + document.cookie.length"), 0)

    def test_a_missing_key_is_reported(self):
        self.proxy.key = "secret"
        self.send("Hello")
        self.page.click("#ask >> text=Cancel")
        expect(self.page.locator(".answer")).to_contain_text("a key is needed")

    def test_an_unknown_policy_is_reported(self):
        self.choose(a_kv="snapkw")
        self.ask(TOTAL, PAGE)
        expect(self.page.locator(".answer .wrong")).to_contain_text("snapkv")
        self.choose(a_kv="")
        self.page.click("text=Regenerate")
        expect(self.page.locator(".answer .text")).to_have_text(RIGHT[TOTAL])

    def test_files_that_are_not_images(self):
        text, damaged, liar = self.write("notes.txt", "hello"), self.folder / "damaged.png", self.folder / "liar.png"
        damaged.write_bytes(PAGE.read_bytes()[:200])
        liar.write_text("<script>alert(1)</script>")
        self.page.set_input_files("#files", [str(text), str(damaged), str(liar), str(PAGE)])
        expect(self.page.locator("#attached li")).to_have_count(1)  # the good one
        says = self.page.locator("#notice")
        for words in ("notes.txt is none of the pictures", "damaged.png is damaged", "liar.png is none of the pictures"):
            expect(says).to_contain_text(words)

    def test_an_image_that_the_server_refuses(self):
        """The browser reads it, the server has limits."""
        def chunk(kind, data):
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        side = 8100  # 65.6 megapixels, a bit each
        rows = zlib.compress(b"\0" * ((side + 7) // 8 + 1) * side)
        large = self.folder / "large.png"
        large.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))
        self.ask(TOTAL, large)
        expect(self.page.locator(".answer .wrong")).to_contain_text("messages[0].content[0].image_url")

    def test_model_output_is_rendered_as_text(self):
        nodes = self.page.evaluate("""async () => {
            const {markdown} = await import('/page/markdown.js');
            const box = document.createElement('div');
            box.append(...markdown('<img src=x onerror=alert(1)> **<b>bold</b>** and `a<b`\\n\\n- one\\n- *two*\\n\\n3. three\\n\\n```\\n<script>x</script>\\n```\\n# Head\\n2 * 3 * 4 and **open'));
            return {html: box.innerHTML, tags: [...box.querySelectorAll('*')].map((n) => n.tagName.toLowerCase())};
        }""")
        self.assertEqual(nodes["tags"], ["p", "strong", "code", "ul", "li", "li", "em", "ol", "li", "pre", "code", "p", "p"])
        self.assertNotIn("<img", nodes["html"])
        self.assertIn("&lt;script&gt;", nodes["html"])
        self.assertIn("2 * 3 * 4 and **open", nodes["html"])


class FullServer(PageTest):
    FLAGS = ("--parallel", "1", "--max-waiting", "1")

    def test_a_full_queue_is_reported(self):
        others = []
        for place in ("running", "waiting"):
            others.append(self.keep_busy())
            self.wait_until(lambda: self.state()["requests"][place] == 1)
        self.ask(TOTAL, PAGE)
        expect(self.page.locator(".answer")).to_contain_text("too many requests wait already")
        expect(self.page.locator(".answer")).to_contain_text("in 1 s")
        for other in others:
            other.close()
        self.wait_until_idle()
        self.page.click("button:text-is('Try again')")
        expect(self.page.locator(".answer .text")).to_have_text(RIGHT[TOTAL])


class Interaction(PageTest):
    def test_keyboard_navigation(self):
        page = self.page
        expect(page.locator("#question")).to_be_focused()
        page.keyboard.type("one")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("two")
        expect(page.locator("#question")).to_have_value("one\ntwo")
        self.assertEqual(self.proxy.bodies, [])
        page.fill("#question", "")
        self.ask(TOTAL, PAGE)
        page.keyboard.press("ArrowUp")
        expect(page.locator("textarea[aria-label='Edit the question']")).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.locator("textarea[aria-label='Edit the question']")).to_have_count(0)
        page.locator("#thread").focus()
        page.keyboard.press("/")
        expect(page.locator("#question")).to_be_focused()
        page.keyboard.press("Alt+l")
        expect(page.locator("#live")).to_be_visible()
        page.keyboard.press("Alt+l")
        page.keyboard.press("Alt+n")
        expect(page.locator(".answers")).to_have_count(0)
        page.keyboard.press("Shift+Tab")
        expect(page.locator("#pick")).to_be_focused()
        page.locator("#open-settings").focus()
        page.keyboard.press("Shift+Tab")
        expect(page.locator(".skip")).to_be_focused()

    def test_every_control_has_an_accessible_name(self):
        self.ask(TOTAL, PAGE)
        expect(self.page.locator("#status")).to_contain_text(RIGHT[TOTAL])  # what a screen reader says
        self.attach(PAGE)
        self.open_card()
        nameless = self.page.evaluate("""() => [...document.querySelectorAll('button, input, textarea, img, meter')].filter((n) =>
            !(n.ariaLabel || n.alt || n.textContent.trim() || n.labels?.length || n.hidden)).map((n) => n.outerHTML)""")
        self.assertEqual(nameless, [])

    def transfer(self, kind):
        """A paste or a drop of an image, as the browser would tell of it."""
        self.page.evaluate("""([kind, data]) => {
            const transfer = new DataTransfer();
            const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
            transfer.items.add(new File([bytes], 'invoice.png', {type: 'image/png'}));
            const event = kind === 'paste' ? new ClipboardEvent('paste', {clipboardData: transfer, bubbles: true, cancelable: true})
                                           : new DragEvent(kind, {dataTransfer: transfer, bubbles: true, cancelable: true});
            document.querySelector('#question').dispatchEvent(event);
        }""", [kind, base64.b64encode(PAGE.read_bytes()).decode()])

    def test_paste_and_drop(self):
        self.transfer("paste")
        expect(self.page.locator("#attached li")).to_have_count(1)
        self.transfer("dragover")
        expect(self.page.locator("#drop")).to_be_visible()
        self.transfer("drop")
        expect(self.page.locator("#drop")).not_to_be_visible()
        expect(self.page.locator("#attached li")).to_have_count(2)
        self.page.locator("#attached button").first.click()
        expect(self.page.locator("#attached li")).to_have_count(1)
        self.assertEqual(self.ask(TOTAL), RIGHT[TOTAL])

    def test_live_figures_are_fetched_only_while_visible(self):
        asked = lambda: self.proxy.paths.count("/v1/cache/stats")
        self.ask(TOTAL, PAGE)
        self.assertEqual(asked(), 0)
        self.page.click("#open-live")
        live = self.page.locator("#live")
        for words in ("Requests", "KV pages", "Prefixes", "hits", "Encoder"):
            expect(live).to_contain_text(words)
        n, begin = asked(), time.monotonic()
        self.wait_until(lambda: asked() == n + 3)
        self.assertGreater(time.monotonic() - begin, 1.9)  # once a second
        others = [self.keep_busy(), self.keep_busy()]
        expect(live.locator("dt:text-is('running') + dd")).not_to_have_text("0")
        for other in others:
            other.close()
        live.locator("text=Close").click()
        n = asked()
        self.page.wait_for_timeout(1500)
        self.assertEqual(asked(), n)
        expect(self.page.locator("#open-live")).to_be_focused()

    def test_unchanged_files_are_not_sent_again(self):
        self.page.reload()
        self.page.wait_for_selector("html[data-ready]")
        statuses = []
        self.page.on("response", lambda r: statuses.append(r.status) if "/page/" in r.url else None)
        etag = self.page.request.get(self.base + "page/style.css").headers["etag"]
        self.assertEqual(self.page.request.get(self.base + "page/style.css", headers={"if-none-match": etag}).status, 304)


class Phone(PageTest):
    VIEWPORT = {"width": 360, "height": 640}
    SCHEME = "dark"

    def width(self):
        return self.page.evaluate("document.documentElement.scrollWidth")

    def test_a_narrow_dark_screen(self):
        page = self.page
        r, g, b = map(int, page.evaluate("getComputedStyle(document.body).backgroundColor").strip("rgb()").split(","))
        self.assertLess(r + g + b, 120)
        self.assertEqual(self.ask(TOTAL, PAGE), RIGHT[TOTAL])
        self.open_card()
        self.assertLessEqual(self.width(), 360)
        for control in ("#send", "#pick", "#open-settings", "#open-live", "#open-list", "#question"):
            box = page.locator(control).bounding_box()
            self.assertTrue(box["x"] >= 0 and box["x"] + box["width"] <= 360 and box["y"] + box["height"] <= 640, (control, box))
            self.assertGreaterEqual(box["height"], 32, control)
        expect(page.locator("nav")).not_to_be_visible()
        page.click("#open-list")
        expect(page.locator("nav")).to_be_visible()
        page.click("nav >> text=New conversation")
        expect(page.locator("nav")).not_to_be_visible()
        page.click("#open-live")
        expect(page.locator("#live")).to_contain_text("Requests")
        self.assertLessEqual(self.width(), 360)

    def test_side_by_side_answers_are_stacked(self):
        self.choose(compare=True, b_kv="vlcache", b_budget="0.2")
        self.ask(TOTAL, PAGE)
        first, second = (a.bounding_box() for a in self.page.locator(".answer").all())
        self.assertGreaterEqual(second["y"], first["y"] + first["height"])
        self.assertLessEqual(self.width(), 360)


if __name__ == "__main__":
    unittest.main()
