"""The page at / in a real browser: questions about real images, and what goes wrong on the way."""
import base64
import json
import pathlib
import re
import shutil
import struct
import tempfile
import threading
import time
import unittest
import zlib

from browser import DEMO, MODEL, PAGE, ROOT, PageTest, Proxy, WHY_NOT
from pdf_maker import make_pdf
from tiff_maker import make_tiff

if not WHY_NOT:
    from playwright.sync_api import expect

TOTAL, DATE = "What is the TOTAL?", "What is the DATE?"
RIGHT = {TOTAL: "TOTAL: 435.75", DATE: "DATE: 2026-03-14"}  # models/tinydoc/demo/questions.jsonl

# Shown texts whose contrast with what is under them is below 4.5.
WEAK_TEXTS = """() => {
    const channels = (color) => { const [r, g, b, a = 1] = color.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
    const over = ([r, g, b, a], under) => [r, g, b].map((c, i) => a * c + (1 - a) * under[i]);
    const ground = (node) => { const c = channels(getComputedStyle(node).backgroundColor);
        return c[3] === 1 ? c.slice(0, 3) : over(c, node.parentElement ? ground(node.parentElement) : [255, 255, 255]); };
    const light = (rgb) => { const [r, g, b] = rgb.map((c) => ((c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const bad = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    let seen = 0;
    while (walker.nextNode()) {
        const node = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || !node.checkVisibility() || node.closest(':disabled, .unseen, .skip, noscript')) continue;
        const back = ground(node), [x, y] = [light(over(channels(getComputedStyle(node).color), back)), light(back)].sort((a, b) => b - a);
        ++seen;
        if ((x + 0.05) / (y + 0.05) < 4.5) bad.push(`${node.tagName}.${node.className} ${walker.currentNode.data.trim().slice(0, 30)} ${((x + 0.05) / (y + 0.05)).toFixed(2)}`);
    }
    return {bad, seen};
}"""


class Questions(PageTest):
    def test_an_image_is_sent_unchanged_and_answered(self):
        self.assertEqual(self.ask(TOTAL, PAGE), RIGHT[TOTAL])
        body = self.proxy.bodies[-1]
        url = body["messages"][0]["content"][0]["image_url"]["url"]
        self.assertEqual(base64.b64decode(url.removeprefix("data:image/png;base64,")), PAGE.read_bytes())
        self.assertEqual((body["stream"], body["return_progress"], body["vlcache"]), (True, True, {"explain": True}))
        expect(self.page.locator(".question img")).to_have_js_property("naturalWidth", 224)
        expect(self.page.locator("#model")).to_have_text("tinydocreads images and text4,096 tokens")
        expect(self.page.locator("nav li button")).to_have_text(TOTAL)

    def test_a_conversation_continues(self):
        self.ask(TOTAL, PAGE)
        self.assertEqual(self.ask(DATE), RIGHT[DATE])
        roles = [m["role"] for m in self.proxy.bodies[-1]["messages"]]
        self.assertEqual(roles, ["user", "assistant", "user"])
        self.assertEqual(self.proxy.bodies[-1]["messages"][1]["content"].strip(), RIGHT[TOTAL])
        expect(self.page.locator(".card .verdict").last).to_contain_text("100 % of this image came from the cache:")

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
        expect(self.page.locator("text=stay as another version")).to_be_visible()
        editor = self.page.locator("textarea[aria-label='Edit the question']")
        editor.fill(DATE)
        editor.press("Enter")
        expect(self.page.locator(".answers")).to_have_count(1)
        expect(self.page.locator(".answer .text")).to_have_text(RIGHT[DATE])
        self.wait_until_ended()
        self.assertEqual(len(self.proxy.bodies[-1]["messages"]), 1)
        self.assertEqual(self.proxy.bodies[-1]["messages"][0]["content"][0]["type"], "image_url")
        versions = self.page.locator(".versions")
        expect(versions).to_have_text("‹2 of 2›")
        versions.locator("[aria-label='Earlier version']").click()
        expect(self.page.locator(".answer .text")).to_have_text([RIGHT[TOTAL], RIGHT[DATE]])
        self.page.reload()
        expect(versions).to_have_text("‹1 of 2›")
        versions.locator("[aria-label='Later version']").click()
        expect(self.page.locator(".answer .text")).to_have_text([RIGHT[DATE]])

    def test_side_by_side(self):
        self.choose(a_kv="full", compare=True, b_kv="window", b_budget="0.3")
        self.ask("What is the NAME?", PAGE)
        self.assertEqual(self.page.locator(".answer h3").all_inner_texts(), ["full", "window 0.3"])
        self.assertEqual(self.answer_text(0), "NAME: MARIA")
        asked = [(b["vlcache"].get("kv"), b["vlcache"].get("kv_budget"), b.get("max_tokens")) for b in self.proxy.bodies]
        self.assertEqual(asked, [("full", None, 1), ("full", None, None), ("window", "0.3", None)])  # the first fills the cache for both
        self.assertEqual(self.proxy.most_answering, 1)
        self.assert_in_view(".answer")
        full, part = self.open_card(0), self.open_card(1)
        expect(full.locator(".kept-all figcaption")).to_contain_text("100 % of its 256 tokens are kept")
        expect(full.locator(".veil g rect")).to_have_count(256)
        kept = part.locator(".veil g rect").count()
        self.assertTrue(20 < kept < 100, kept)
        expect(part.locator(".verdict")).to_contain_text(" fell from ")
        expect(full.locator(".verdict")).not_to_contain_text(" fell from ")
        table = self.page.locator(".comparison")
        expect(table.locator(".verdict")).to_contain_text("The second answer differs from the first")
        expect(table.locator("thead th")).to_have_text(["full", "window 0.3"])
        expect(table).to_contain_text("Asked one after the other, from the same cache: each found 277 of the question’s 278 tokens there.")
        for name in ("Answer: not the same", "First token", "Speed after it", "Memory (KV) at the end", "Tokens kept", "What was kept of the image"):
            expect(table.locator(f"th:text-is('{name}')")).to_be_visible()
        self.assertGreater(table.locator("mark").count(), 0)
        expect(table.locator(".veil")).to_have_count(2)
        expect(full.locator(".bar-of")).to_have_count(8)
        height = lambda card: float(card.locator(".bar-of").first.get_attribute("height"))
        self.assertAlmostEqual(height(part) / height(full), 0.3, delta=0.1)

    def test_a_comparison_that_is_stopped_or_refused(self):
        self.choose(compare=True, a_kv="full", b_kv="full", b_budget="", maxTokens="20")
        self.page.click("#open-settings")
        expect(self.page.locator("#same-sides")).to_be_visible()
        self.page.keyboard.press("Escape")
        self.proxy.delay = 0.2
        self.attach(PAGE)
        self.send("Read the page.")
        first, second = (self.page.locator(".answer").nth(i) for i in (0, 1))
        expect(first.locator(".text")).to_contain_text("I")
        expect(second).to_contain_text("Waits for the first answer")
        expect(second.locator("progress")).not_to_be_visible()
        self.page.click("#send")
        self.wait_until_ended()
        expect(self.page.locator(".answer")).to_contain_text(["Stopped.", "Stopped."])
        self.assertEqual(len(self.proxy.bodies), 2)  # the second was never asked
        expect(self.page.locator(".comparison")).to_have_count(0)
        self.proxy.close()
        self.page.click("text=Regenerate")
        expect(self.page.locator(".answer .wrong")).to_have_text(["The server does not answer. Is it running?"] * 2)
        again = Proxy(self.port, self.proxy.port)
        self.addCleanup(again.close)
        self.page.click("button:text-is('Try again, both')")
        expect(self.page.locator(".comparison")).to_contain_text("Both sides have the same settings. Asked one after the other")

    def test_the_card_says_where_kv_came_from(self):
        self.ask(TOTAL, PAGE)
        self.page.click("#new")
        self.ask(TOTAL, PAGE)
        card = self.open_card()
        expect(card.locator("dt:text-is('image 1') + dd")).to_have_text("256 tokens from the cache, as the beginning of an earlier prompt")
        self.assertRegex(card.locator(".verdict").inner_text(), r"^100 % of this image came from the cache: about [\d.]+ m?s saved\. First words after ")
        for words in ("first token", "tokens/s", "policy", "full", "at most", "after the prompt", "waiting"):
            expect(card).to_contain_text(words)

    def test_request_and_answer_as_json(self):
        self.choose(system="Be brief.", topK="3")
        self.ask(TOTAL, PAGE)
        shown = self.open_card(fold="JSON").locator("pre")
        expect(shown).to_have_count(2)
        request, answer = shown.all_inner_texts()
        request, answer = json.loads(request), json.loads(answer)
        sent = self.proxy.bodies[-1]
        self.assertTrue(request["messages"][1]["content"][0]["image_url"]["url"].startswith("data:image/png;base64,iVBOR"))
        request["messages"][1]["content"][0] = sent["messages"][1]["content"][0]  # it is cut short
        self.assertEqual(request, sent)
        self.assertEqual((answer["content"].strip(), answer["finish_reason"]), (RIGHT[TOTAL], "stop"))
        self.assertIn("kv", answer["vlcache"])
        times = answer["vlcache"]["timings_ms"]
        self.assertTrue(0 < times["read"] <= times["queue"] <= times["ttft"], times)  # decoding the image is not waiting

    def test_settings_reach_the_server_and_stay(self):
        self.choose(system="Answer in a word.", temperature="0.5", maxTokens="3", a_reuse="off", topP="0.9", topK="4", minP="0.1", seed="7",
                    repetition="1.1", presence="0.2", frequency="0.3")
        self.ask("Read the page.", PAGE)
        body = self.proxy.bodies[-1]
        self.assertEqual(body["messages"][0], {"role": "system", "content": "Answer in a word."})
        self.assertEqual((body["temperature"], body["max_tokens"], body["vlcache"]["reuse"]), (0.5, 3, "off"))
        sampling = {"top_p": 0.9, "top_k": 4, "min_p": 0.1, "seed": 7, "repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.3}
        self.assertEqual({name: body[name] for name in sampling}, sampling)
        expect(self.page.locator(".card .verdict")).to_contain_text("cut at the limit of tokens")
        self.page.reload()
        self.page.click("#open-settings")
        expect(self.page.locator("[name=maxTokens]")).to_have_value("3")
        expect(self.page.locator("#policies option").first).to_have_attribute("value", "auto")

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
        answer = {"text": "<b>It</b> is <u onclick=x>7.", "state": "running", "usage": {"prompt_tokens": "many"}, "served": {"kv": []}, "seen": 3, "pictures": ["gone"]}
        self.import_file("odd.json", json.dumps({"name": 5, "messages": [{"role": "user", "text": 4}, {"role": "assistant", "answers": [answer]}]}))
        expect(self.page.locator("nav li")).to_have_text("odd.json")
        self.assertEqual(self.answer_text(), "It is <u onclick=x>7.")
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

    def test_tabs_show_the_same_conversations(self):
        other = self.open()
        self.proxy.more, self.proxy.delay = {"ignore_eos": True}, 0.1
        self.send("Hello")
        expect(other.locator("nav li")).to_contain_text(["Hello"])
        other.click("nav li button")
        expect(other.locator("#send")).to_have_text("Stop")  # it is answered in the first tab
        other.keyboard.press("Escape")
        self.wait_until_ended()
        for page in (self.page, other):
            expect(page.locator(".answer")).to_contain_text("Stopped.")
            expect(page.locator("#send")).to_have_text("Send")
        self.page.click("#delete")
        self.page.click("#ask button.main")
        expect(other.locator("nav li")).to_have_count(0)
        expect(other.locator("#name")).to_have_text("New conversation")

    def test_what_is_not_sent_stays_with_its_conversation(self):
        self.say("It is.")
        self.ask("What?")
        self.attach(PAGE)
        self.page.fill("#question", "written here\nin two lines")
        self.page.click("#new")
        expect(self.page.locator("#attached li")).to_have_count(0)
        expect(self.page.locator("#question")).to_have_value("")
        self.page.fill("#question", "and here")
        self.page.click("nav li button")
        expect(self.page.locator("#question")).to_have_value("written here\nin two lines")
        self.page.click("#new")
        expect(self.page.locator("#question")).to_have_value("and here")
        # A file that is still read when another conversation is opened.
        self.page.evaluate("""() => {
            const decode = createImageBitmap;
            window.createImageBitmap = async (blob) => { await new Promise((done) => (window.go = done)); return decode(blob); };
        }""")
        self.page.set_input_files("#files", [str(DEMO / "table.png")])
        self.wait_until(lambda: self.page.evaluate("Boolean(window.go)"))
        self.page.click("nav li button")
        self.page.evaluate("window.go()")
        self.page.click("#new")
        expect(self.page.locator("#attached li")).to_have_count(1)
        self.page.click("nav li button")
        expect(self.page.locator("#attached img")).to_have_attribute("alt", PAGE.name)

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
        self.proxy.cut_after = 4
        self.ask("Read the page.", PAGE)
        expect(self.page.locator(".answer")).to_contain_text("The connection ended before the answer did.")
        self.assertTrue(self.answer_text().startswith("I"), self.answer_text())

    def test_a_key_is_requested(self):
        self.proxy.key = "secret"
        self.attach(PAGE)
        self.send(TOTAL)
        expect(self.page.locator("#ask")).to_contain_text("This server wants a key")
        expect(self.page.locator("#ask")).not_to_contain_text("does not accept")
        self.page.fill("#ask input", "wrong")
        self.assertEqual(self.page.get_attribute("#ask input", "type"), "password")
        self.page.press("#ask input", "Enter")
        expect(self.page.locator("#ask")).to_contain_text("The server does not accept this key.")
        expect(self.page.locator("#ask input")).to_have_value("")
        self.page.fill("#ask input", "secret")
        self.page.press("#ask input", "Enter")
        expect(self.page.locator(".answer .text")).to_have_text(RIGHT[TOTAL])
        self.page.reload()
        self.wait_until_ended()
        self.assertEqual(self.ask(DATE), RIGHT[DATE])  # it stays for the tab's session
        self.assertNotIn("secret", self.page.evaluate("JSON.stringify(localStorage) + document.cookie"))

    def test_a_missing_key_is_reported(self):
        self.proxy.key = "secret"
        self.send("Hello")
        self.page.click("#ask >> text=Cancel")
        expect(self.page.locator(".answer")).to_contain_text("a key is needed")

    def test_an_unknown_policy_is_reported(self):
        self.page.click("#open-settings")
        kv, budget, reuse = (self.page.locator(f"[name='a.{name}']") for name in ("kv", "budget", "reuse"))
        for field, default in ((kv, "full"), (budget, "none"), (reuse, "auto")):
            expect(field).to_have_attribute("placeholder", default)
        offered = self.page.locator("#policies option").evaluate_all("(all) => all.map((option) => option.value)")
        self.assertEqual(offered[:3], ["auto", "draft", "full"])
        said, done = self.page.locator("[data-side=a] .said"), self.page.locator("#settings button.main")
        for field, wrong, right, words in ((kv, "pointr", "pointer", ("Policy: ", "pointer")), (kv, "snapkv+piramid", "snapkv+pyramid", ("Policy: ", "pyramid")),
                                           (budget, "2x", "200", ("Budget: ", "2x")), (budget, "0", "64MiB", ("Budget: ",)), (reuse, "exat", "exact", ("Reuse: ", "exat"))):
            field.fill(wrong)
            for word in words:
                expect(said).to_contain_text(word)
            expect(field).to_have_attribute("aria-invalid", "")
            done.click()
            expect(self.page.locator("#settings")).to_be_visible()
            field.fill(right)
            expect(said).not_to_contain_text(words[0] + wrong)
            expect(field).not_to_have_attribute("aria-invalid", "")
        self.page.locator("[name=compare]").check()
        self.page.locator("[name='b.kv']").fill("h3o")
        expect(self.page.locator("[data-side=b] .said")).to_contain_text("h2o")
        self.page.locator("[name=compare]").uncheck()  # then it does not matter
        done.click()
        expect(self.page.locator("#settings")).not_to_be_visible()
        self.proxy.close()  # what cannot be checked is taken
        self.choose(a_kv="snapkw", a_budget="", a_reuse="", compare=True, b_kv="full", b_budget="")
        again = Proxy(self.port, self.proxy.port)
        self.addCleanup(again.close)
        self.ask(TOTAL, PAGE)
        expect(self.page.locator(".answer .wrong")).to_contain_text("snapkv")
        self.assertEqual(self.answer_text(1), RIGHT[TOTAL])

    def test_files_that_are_neither_images_nor_text(self):
        other, damaged, liar = (self.folder / name for name in ("notes.bin", "damaged.png", "liar.png"))
        other.write_bytes(b"\x01\x02\0\x03")
        damaged.write_bytes(PAGE.read_bytes()[:200])
        liar.write_bytes(b"\xff\xfe\xff")
        self.page.set_input_files("#files", [str(other), str(damaged), str(liar), str(PAGE)])
        expect(self.page.locator("#attached li")).to_have_count(1)  # the good one
        says = self.page.locator("#notice")
        self.assertAlmostEqual(says.locator("span").bounding_box()["x"], self.page.locator("#composer .bar").bounding_box()["x"], delta=1)
        for words in ("notes.bin is neither a PDF, nor a clip, nor a text, nor one of the images", "damaged.png is damaged",
                      "liar.png is not an image that can be read: it contains something else, or is damaged."):
            expect(says).to_contain_text(words)
        texts = [self.write(name, "It is a text.\n") for name in ("bad.png", "bad.pdf", "good.ts")]
        (self.folder / "junk.txt").write_bytes(bytes(range(1, 32)) * 40)
        self.page.set_input_files("#files", [*map(str, texts), str(self.folder / "junk.txt")])
        for words in ("bad.png is not an image that can be read: it contains text", "bad.pdf is not a PDF that can be read: it contains text", "junk.txt is neither"):
            expect(says).to_contain_text(words)
        expect(self.page.locator("#attached li")).to_have_count(2)
        expect(self.page.locator("#attached")).to_contain_text("good.ts14 characters")

    def test_files_are_seen_while_they_are_read_and_stay_with_their_conversation(self):
        attached, hint = self.page.locator("#attached li"), self.page.locator("#hint")
        self.page.evaluate("""() => {  // images are decoded when the test says so
            const decode = window.createImageBitmap;
            let open;
            window.hold = () => { const held = new Promise((done) => (open = done)); window.createImageBitmap = async (blob) => (await held, decode(blob)); };
            window.release = () => open();
        }""")
        hold, release = (lambda: self.page.evaluate("hold()")), (lambda: self.page.evaluate("release()"))
        self.say("Yes.")
        self.ask(DATE)
        hold()
        self.attach(DEMO / "table.png", self.write("notes.md", "LAMP 12"))
        expect(attached).to_have_text(["reading table.png…×", "reading notes.md…×"])
        self.page.click("#new")
        expect(attached).to_have_count(0)
        release()
        self.page.evaluate("new Promise((done) => setTimeout(done))")
        self.assertEqual(attached.count(), 0)
        self.page.click(f"nav >> text={DATE}")
        expect(attached).to_have_text(["224 × 224×", "notes.md7 characters×"])
        hold()
        self.attach(DEMO / "shapes.png", PAGE)
        attached.nth(2).locator("button").click()  # given up while it is read
        n = len(self.proxy.bodies)
        self.send(TOTAL)
        expect(hint).to_have_text("Sent as soon as invoice.png has been read.")
        self.assertEqual(len(self.proxy.bodies), n)
        release()
        expect(self.page.locator(".answers")).to_have_count(2)
        self.wait_until_ended()
        expect(hint).to_be_empty()
        content = self.proxy.bodies[-1]["messages"][-1]["content"]
        self.assertEqual([part["type"] for part in content], ["image_url", "image_url", "text"])
        self.assertEqual(base64.b64decode(content[1]["image_url"]["url"].split(",")[1]), PAGE.read_bytes())
        self.check_a_question_that_is_too_long_is_not_sent()

    def check_a_question_that_is_too_long_is_not_sent(self):
        hint = self.page.locator("#hint")
        self.page.click("#new")
        self.attach(self.write("long.md", "LAMP 12\n" * 3000))
        expect(hint).to_have_text(re.compile(r"^About [\d,]+ tokens; tinydoc reads 4,096\. Remove long\.md, or attach a part of it\.$"))
        n = len(self.proxy.bodies)
        self.send("How many?")
        expect(hint).to_have_class("wrong")
        self.assertEqual((len(self.proxy.bodies), self.page.input_value("#question")), (n, "How many?"))
        self.page.locator("#attached button").click()
        expect(hint).to_be_empty()
        self.send("LAMP 12 " * 3000)  # before it was counted
        expect(hint).to_contain_text("Shorten the question.")
        self.assertEqual(len(self.proxy.bodies), n)
        self.say("Many.")
        self.context.route("**/tokenize", lambda route: route.abort())
        self.send("LAMP 13 " * 3000)  # nobody knows how long it is
        expect(self.page.locator(".answer .text")).to_have_text("Many.")

    def test_text_files_are_asked_about(self):
        self.page.set_input_files("#files", [str(self.write("notes.md", "# Notes\nLAMP 12\n")), str(PAGE)])
        expect(self.page.locator("#attached li")).to_have_count(2)
        self.ask(TOTAL)
        image, text = self.proxy.bodies[-1]["messages"][0]["content"]
        self.assertEqual(text["text"], f"notes.md:\n\n# Notes\nLAMP 12\n\n{TOTAL}")
        self.assertEqual(image["type"], "image_url")
        self.page.click("text=notes.md")
        expect(self.page.locator(".file pre")).to_have_text("# Notes\nLAMP 12\n")

    def test_an_image_that_is_too_large_is_shrunk(self):
        def chunk(kind, data):
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        width, height = 20000, 500  # longer than a canvas may be
        rows = zlib.compress(b"\0" * ((width + 7) // 8 + 1) * height)
        large = self.folder / "large.png"
        large.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))
        self.proxy.more = {"max_tokens": 2}
        self.attach(large)
        expect(self.page.locator("#attached")).to_contain_text("16384 × 410, made smaller")
        self.ask(TOTAL)
        expect(self.page.locator(".answer .wrong")).to_have_count(0)

    def test_an_image_of_more_pixels_than_the_server_takes_is_shrunk(self):
        self.proxy.props = {"model_alias": "tinydoc", "modalities": {"vision": True}, "default_generation_settings": {"n_ctx": 4096}, "limits": {"image_pixels": 30_000}}
        self.page.reload()
        expect(self.page.locator("#model")).to_contain_text("reads images")
        self.attach(PAGE)
        expect(self.page.locator("#attached")).to_contain_text("173 × 173, made smaller")

    def test_errors_are_in_words(self):
        self.proxy.refuse = (400, {"error": {"message": "messages[0].content[0].image_url: PNG: 9000 x 8000 pixels; the limit is 64000000 pixels"}})
        self.ask(TOTAL, PAGE)
        expect(self.page.locator(".answer .wrong")).to_have_text("The image: PNG: 9000 x 8000 pixels; the limit is 64000000 pixels")

    def test_a_model_without_vision(self):
        self.proxy.props = {"model_alias": "words", "modalities": {"vision": False}, "default_generation_settings": {"n_ctx": 2048}, "limits": {"image_pixels": 64_000_000}}
        self.page.reload()
        expect(self.page.locator("#model")).to_contain_text("reads text only")
        expect(self.page.locator("#pick")).not_to_be_visible()
        self.page.set_input_files("#files", [str(PAGE)])
        expect(self.page.locator("#notice")).to_have_text("words reads text only: it cannot see invoice.png.")
        expect(self.page.locator("#attached li")).to_have_count(0)


class Rendering(PageTest):
    def test_markdown_formulas_and_thoughts(self):
        self.say("<think>Is it *so*?</think>\nMass: $E=mc^2$, \\(a\\) <b>bold</b> [bad](javascript:alert(1)) ![pic](https://a.example/p.png)\n\n",
                 "| a | b |\n|---|---|\n| 1 | 2 |\n\n- one\n  - *two* `x`\n\n> said\n\n---\n\n~~no~~\n\n```python\nprint(1)\n```\n",
                 "$$\n\\frac{1}{2}\n$$\n\n$\\href{https://a.example}{x}$ $\\includegraphics{x.png}$ $\\htmlStyle{color:red}{x}$ $\\color{red}x\\def\\a{\\a\\a}\\a$")
        self.ask("Show me")
        text = self.page.locator(".answer .text")
        expect(text.locator("table td")).to_have_text(["1", "2"])
        expect(text.locator("ul li ul li")).to_have_text("two x")
        expect(text.locator("li li em")).to_have_text("two")
        expect(text.locator("math").first).to_be_visible()
        expect(text.locator("math msup")).to_have_count(1)
        expect(text.locator(".display math mfrac")).to_have_count(1)
        expect(text.locator("blockquote, hr, s")).to_have_count(3)
        self.page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
        text.locator(".code button:text-is('Copy')").click()
        self.assertEqual(self.page.evaluate("window.copied"), "print(1)")
        expect(text.locator(".code .bar")).to_contain_text("python")
        thought = text.locator("details.thought")
        expect(thought.locator("p")).not_to_be_visible()
        thought.locator("summary").click()
        expect(thought.locator("em")).to_have_text("so")
        links = text.locator("a").evaluate_all("(all) => all.map((a) => [a.href, a.rel])")
        self.assertEqual(links, [["https://a.example/p.png", "noopener noreferrer"]])
        self.assertEqual(text.locator("b, img, script, [style], [href^=javascript]").count(), 0)
        expect(text).to_contain_text("[bad](javascript:alert(1))")
        self.check_tables_of_html()

    def check_tables_of_html(self):
        rows = ('<table border="1">\n<thead><tr><th>Item</th><th>Count</th><th colspan="2" onclick="alert(1)">Price</th></tr></thead>\n'
                '<tbody><tr><td>Lamp<br><b>brass</b></td><td>12</td><td>$3^4$</td><td>EUR</td></tr><tr><td rowspan="2">Rope &amp; &lt;wire&gt;</td><td>96</td>')
        self.say("<think>A <b>table</b>?</think>Here:\n\n", *(rows[i:i + 11] for i in range(0, len(rows), 11)))
        self.proxy.delay = 0.02
        self.page.evaluate("""() => {
            window.seen = new Set();
            new MutationObserver(() => document.querySelectorAll('.answer .text').forEach((node) => window.seen.add(node.innerText))).observe(document.querySelector('#thread'), {subtree: true, childList: true});
        }""")
        self.ask("Show me")
        self.assertEqual([text for text in self.page.evaluate("[...window.seen]") if "<t" in text or "colspan" in text or "</" in text], [])
        text = self.page.locator(".answer .text").last
        expect(text.locator("td")).to_have_count(6)  # as far as it has come
        self.proxy.delay = 0
        self.say("<think>A <b>table</b>?</think>Here:\n\n", rows + "<td>3.10</td><td>EUR</td></tr>\n<tr><td>4</td><td>2.80</td><td>EUR</td></tr></tbody>\n</table>\n\nThe total is <b>435.75</b>.")
        self.page.click("text=Regenerate")
        expect(text.locator("td")).to_have_count(11)
        self.assertEqual(text.locator("thead th").evaluate_all("(all) => all.map((th) => [th.innerText, th.colSpan, th.scope])"), [["Item", 1, "col"], ["Count", 1, "col"], ["Price", 2, "col"]])
        self.assertEqual(text.locator("td[rowspan='2']").inner_text(), "Rope & <wire>")
        expect(text.locator("td strong")).to_have_text("brass")
        expect(text.locator("td math msup")).to_have_count(1)
        expect(text.locator("p > strong").last).to_have_text("435.75")
        self.page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
        text.locator("button:text-is('Copy table')").click()
        self.assertEqual(self.page.evaluate("window.copied"),
                         "Item\tCount\tPrice\t\nLamp brass\t12\t3^4\tEUR\nRope & <wire>\t96\t3.10\tEUR\n\t4\t2.80\tEUR")
        # A screen reader is told the text: neither tags nor thoughts.
        expect(self.page.locator("#status")).to_have_text("Answer: Here:\nItem, Count, Price.\nLamp brass, 12, 3^4, EUR.\nRope & <wire>, 96, 3.10, EUR.\n4, 2.80, EUR.\nThe total is 435.75.", use_inner_text=False)
        self.say("<table>\n" + "<tr><td>1</td><td>2</td></tr>\n" * 2500 + "</table>\n\nDone.")
        self.page.click("text=Regenerate")
        expect(text.locator("p").last).to_have_text("Done.")
        expect(text.locator("tr")).to_have_count(2000)
        expect(text.locator(".of-table")).to_contain_text("A table this large is shown in part: the first 2,000 rows; the rest as text.")
        expect(text.locator(".of-table pre")).to_contain_text("<tr><td>1</td><td>2</td></tr>")
        self.check_only_chosen_elements()

    def check_only_chosen_elements(self):
        """Whatever a model writes: the elements and attributes of an answer are the page's, and few."""
        found = self.page.evaluate("""async () => {
            const {MarkdownView} = await import('/page/markdown_view.js');
            const pieces = ['<table>', '</table>', '<tr>', '</tr>', '<td>', '</td>', '<th colspan=7 onclick="alert(1)">', '<td rowspan="9" style="x">', '<thead>', '<tbody>', '<caption>',
                '<b onmouseover="alert(1)">', '</b>', '<i>', '</i>', '<sub>', '</sub>', '<br>', '<script>alert(1)</script>', '<script>', '</script>', '<style>*{}</style>', '<!--', '-->', '<![CDATA[', ']]>',
                '<img src=x onerror="alert(1)">', '<svg onload=alert(1)>', '<iframe src="javascript:alert(1)">', '<a href="javascript:alert(1)">x</a>', '<form action=x>', '<math><mi>', '&lt;script&gt;', '&#60;b>',
                '[a](https://a.example/)', '[b](javascript:alert(1))', '**', '`', '$x$', '|a|\\n|-|\\n', '- ', '> ', '# ', '<think>', '</think>', '```', '\\n', '\\n\\n', 'a', ' ', '<', '>', '"', "'"];
            let seed = 11;
            const next = (n) => (seed = (seed * 48271) % 2147483647) % n;
            const random = Array.from({length: 120}, () => Array.from({length: next(60)}, () => pieces[next(pieces.length)]).join(''));
            const large = [`<table>${'<tr><td>1</td><td onclick=x>2</td></tr>'.repeat(25000)}</table>`, `${'<table><tr><td>'.repeat(10000)}x`, `<table><tr>${'<td colspan=1000>a</td>'.repeat(4000)}`,
                `<table>${'<tr><td rowspan=1000 colspan=1000>a</td></tr>'.repeat(800)}`];
            const view = new MarkdownView(document.createElement('div')), names = new Set(), attributes = new Set();
            document.querySelector('#thread').append(view.node);
            let most = 0;
            for (const text of [...random, ...large]) {
                view.show(text, '', text.length % 2 === 0);
                const all = view.node.querySelectorAll('*');
                most = Math.max(most, all.length);
                for (const node of all) {
                    names.add(node.localName);
                    for (const {name, value} of node.attributes) {
                        attributes.add(name);
                        if (name === 'href' && !/^https?:/.test(value)) attributes.add(value);
                        if (/^(col|row)span$/.test(name) && !(Number(value) > 1 && Number(value) <= 1000)) attributes.add(value);
                    }
                }
                if (text.length > 10000) view.node.getBoundingClientRect();  // it is laid out
            }
            view.node.remove();
            return {names: [...names], attributes: [...attributes], most};
        }""")
        self.assertLessEqual(set(found["names"]), {
            "p", "div", "span", "hr", "blockquote", "ul", "ol", "li", "pre", "code", "a", "strong", "em", "s", "u", "sub", "sup", "br", "details", "summary", "button",
            "table", "caption", "thead", "tbody", "tr", "th", "td", "math", "semantics", "mrow", "mi"})
        self.assertLessEqual({"table", "caption", "thead", "th", "sub", "strong"}, set(found["names"]))
        self.assertLessEqual(set(found["attributes"]), {"class", "scope", "colspan", "rowspan", "href", "rel", "target", "title", "tabindex", "role", "aria-label", "aria-level", "type", "start", "display"})
        self.assertLess(found["most"], 12000)

    def test_a_thought_of_its_own_field(self):
        self.say({"reasoning_content": "Let me "}, {"reasoning_content": "see."}, "It is 7.")
        self.ask("?")
        expect(self.page.locator(".thought summary")).to_have_text("Thought")
        self.page.click(".thought summary")
        expect(self.page.locator(".thought")).to_contain_text("Let me see.")
        self.say("Yes.")
        self.ask("Sure?")
        self.assertEqual(self.proxy.bodies[-1]["messages"][1]["content"], "It is 7.")  # a thought is not told again
        self.say("<think>Is it 7, or")
        self.ask("Really?")
        expect(self.page.locator("#status")).to_have_text("The model said nothing.")  # a screen reader is told no thoughts

    def test_a_formula_that_takes_too_long(self):
        left = self.page.evaluate("""async () => {
            const {Formulas} = await import('/page/math.js');
            const quick = new Formulas(), slow = new Formulas(1);
            const good = quick.element('x^2', false), bad = slow.element('{x}'.repeat(1600), false), after = slow.element('\\\\notknown', false);
            document.body.append(good, bad, after);
            while (quick.queue.length + slow.queue.length > 0) await new Promise((done) => setTimeout(done, 20));
            return [good, bad, after].map((node) => node.querySelectorAll('math').length);
        }""")
        self.assertEqual(left, [1, 0, 0])  # the text stays

    def test_progress_counts_to_the_end(self):
        self.proxy.delay = 0.1
        self.send("LAMP 12 " * 380)
        begin, seen = time.monotonic(), []
        reading = self.page.locator(".reading")
        expect(reading).to_contain_text("Reading the question", timeout=1000)
        self.assertLess(time.monotonic() - begin, 1)
        while self.page.locator(".reading").count() and time.monotonic() - begin < 20:
            text = self.page.evaluate("document.querySelector('.reading')?.innerText ?? ''").strip()
            if text and text not in seen:
                seen.append(text)
        percents = [int(text.split("question: ")[1].split(" %")[0]) for text in seen if "%" in text]
        self.assertEqual(percents, sorted(percents))
        self.assertGreaterEqual(len(set(percents)), 4, seen)
        self.assertEqual(percents[-1], 100, seen)
        self.page.keyboard.press("Escape")
        self.wait_until_ended()

    def test_progress_of_layers_and_while_waiting(self):
        steps = [(None, "Reading the question", None), ({"share": 0, "waiting": True}, "Waiting: the server is busy with other questions", None),
                 ({"share": 0.13, "seconds_left": 50}, re.compile("Reading the question: 13 %, about (50|4.) s left"), 0.13),
                 ({"share": 0.434, "seconds_left": 300.5}, re.compile("Reading the question: 43 %, about [56] min left"), 0.434),
                 ({"share": 0.5}, "Reading the question: 50 %", 0.5), ({"share": 1, "seconds_left": 0}, "Reading the question: 100 %", 1)]
        gates = [threading.Event() for _ in steps]
        self.proxy.script = []
        for gate, (told, _, _) in zip(gates, steps):
            if told:
                event = {"choices": [{"index": 0, "delta": {}, "finish_reason": None}], "prompt_progress": {"total": 279, "cache": 0, "processed": 0, "time_ms": 5}, "vlcache_progress": told}
                self.proxy.script.append(event)
            self.proxy.script.append(gate)
        self.proxy.script.append({"content": "It is 7."})
        self.send("What?")
        for gate, (_, text, share) in zip(gates, steps):
            expect(self.page.locator(".reading")).to_have_text(text)
            self.assertEqual(self.page.evaluate("(() => { const bar = document.querySelector('.reading progress'); return bar.hasAttribute('value') ? bar.value : null; })()"), share)
            gate.set()
        self.wait_until_ended()
        expect(self.page.locator(".reading")).to_have_count(0)

    def test_a_long_conversation_is_in_the_document_in_part(self):
        n = 10_000
        messages = [m for i in range(n // 2) for m in ({"role": "user", "text": f"Question {i}"}, {"role": "assistant", "answers": [{"text": f"Answer {i}, **bold**", "state": "done"}]})]
        buffer = json.dumps({"name": "Long", "messages": messages}).encode()
        self.page.set_input_files("#import-files", {"name": "long.json", "mimeType": "application/json", "buffer": buffer})
        expect(self.page.locator("#thread > *").last).to_contain_text(f"Answer {n // 2 - 1}")
        far = self.page.evaluate("""async () => {
            const thread = document.querySelector('#thread'), frames = [];
            const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
            const number = () => Number(/\\d+/.exec(thread.firstElementChild.textContent)[0]);
            let most = 0, first = 1e9, moved = 0;
            for (let i = 0; i < 60; ++i) {
                const begin = performance.now(), top = thread.firstElementChild;
                thread.scrollTop = 0;
                const at = top.getBoundingClientRect().top;
                await frame();
                frames.push(performance.now() - begin);
                moved = Math.max(moved, Math.abs(top.getBoundingClientRect().top - at));
                most = Math.max(most, thread.children.length);
                first = Math.min(first, number());
            }
            for (let i = 0; i < 20; ++i) {
                thread.scrollTop = thread.scrollHeight;
                await frame();
                most = Math.max(most, thread.children.length);
            }
            return {most, first, moved, back: number(), median: frames.sort((a, b) => a - b)[30], worst: frames.at(-1)};
        }""")
        print(f"scrolling through 10,000 messages: {far['median']:.0f} ms a step of 40 messages, {far['worst']:.0f} ms at worst", flush=True)
        self.assertLessEqual(far["most"], 200)
        self.assertLess(far["first"], n // 2 - 500)
        self.assertGreater(far["back"], far["first"] + 200)
        self.assertLess(far["moved"], 2)  # what is seen stays where it is
        self.page.fill("#search", "Answer 37,")
        expect(self.page.locator("nav li")).to_contain_text("Answer 37, **bold**")
        self.page.click("nav li button")
        expect(self.page.locator(".answer:has-text('Answer 37,')")).to_be_in_viewport()
        self.assertLessEqual(self.page.locator("#thread > *").count(), 200)


class Tour(PageTest):
    TOUR = True
    VIEWPORT = {"width": 1000, "height": 960}  # of the images in docs/server/page.md

    def click(self, text):
        """One of the three, until it has been answered."""
        self.page.click(f".tour button:has-text('{text}')")
        expect(self.page.locator(f".tour[aria-label='Tour, click {text[0]} of 3']")).to_be_visible()

    def test_three_clicks(self):
        expect(self.page.locator("#question")).to_be_focused()
        expect(self.page.locator(".tour img")).to_have_js_property("naturalWidth", 224)
        self.shot("tour-0")
        self.click("1. Ask about this page")
        self.assertEqual(self.answer_text(), RIGHT[TOTAL])
        expect(self.page.locator(".card .verdict")).to_contain_text("Nothing came from the cache: it was not asked about before.")
        self.shot("tour-1")
        self.page.set_viewport_size({"width": 1280, "height": 800})
        self.click("2. Ask with a tenth of the cache")
        self.assert_in_view(".answer", ".tour button.main")
        self.page.set_viewport_size(self.VIEWPORT)
        self.assertEqual([self.answer_text(0), self.answer_text(1)], [RIGHT[TOTAL]] * 2)
        table = self.page.locator(".comparison")
        expect(table.locator(".verdict")).to_contain_text("The second answer is the same as the first, word for word, with 20 % of the memory.")
        expect(table.locator(".veil")).to_have_count(2)
        expect(table.get_by_role("row", name="Tokens kept").locator("td").nth(1)).to_have_text("28 of 279 (10 %)")  # a tenth
        expect(self.page.locator(".card .verdict").nth(1)).to_contain_text("10 % of the prompt was kept for the answer (28 of 279 tokens, and the answer’s own")
        self.shot("tour-2")
        self.click("3. Ask again in a new conversation")
        self.assertEqual(self.answer_text(), RIGHT[DATE])
        expect(self.page.locator(".card .verdict")).to_contain_text("100 % of this image came from the cache:")
        summary = self.page.locator(".tour li")
        served = self.page.evaluate("""async () => {
            const db = await new Promise((done) => { const r = indexedDB.open('vlcache'); r.onsuccess = () => done(r.result); });
            return new Promise((done) => { const r = db.transaction('conversations').objectStore('conversations').getAll();
                r.onsuccess = () => done(r.result.sort((a, b) => a.updated - b.updated).map((c) => c.messages[1].answers)); });
        }""")
        cached = served[2][0]["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertGreater(cached, 256)
        expect(summary.nth(0)).to_contain_text("nothing in the answer, which is the same word for word, with 20 % of the memory")
        saved = re.search("cache: (about .* saved)", self.page.locator(".card .verdict").inner_text())[1].removesuffix(" saved")  # one figure
        expect(summary.nth(1)).to_contain_text(f"What the new question saved: {saved} of computing. Its first words came after ")
        expect(summary.nth(2)).to_contain_text(f"{cached} of its 278 prompt tokens, the page among them, were in the cache")
        self.assertEqual(len({body["cache_salt"] for body in self.proxy.bodies}), 1)
        self.shot("tour-3")
        self.page.click(".tour button:has-text('Done')")
        expect(self.page.locator(".tour")).to_have_count(0)
        self.page.reload()
        expect(self.page.locator("nav li")).to_have_count(3)
        expect(self.page.locator(".tour")).to_have_count(0)

    def test_a_server_that_has_gone(self):
        self.proxy.close()
        self.page.click(".tour button.main")
        expect(self.page.locator("#notice")).to_contain_text("The server does not answer. Is it running?")
        self.page.click("#open-live")
        expect(self.page.locator("#live")).to_contain_text("It is asked again every second.")
        again = Proxy(self.port, self.proxy.port)
        self.addCleanup(again.close)
        expect(self.page.locator("#live h3").first).to_have_text("Requests")
        self.page.click("#open-live")
        again.cut_after = 4
        self.page.click("#notice button")
        expect(self.page.locator(".answer .wrong")).to_have_text("The connection ended before the answer did.")
        expect(self.page.locator("#notice")).to_be_empty()
        again.cut_after = None
        self.page.click(".tour button:has-text('Try again')")
        expect(self.page.locator(".answer .text")).to_have_text(RIGHT[TOTAL])
        self.page.route("**/props", lambda route: route.abort())
        self.page.reload()
        expect(self.page.locator("#notice")).to_contain_text("The server does not answer. Is it running?")
        self.page.unroute("**/props")
        self.page.click("#notice button")
        expect(self.page.locator("#model")).to_contain_text("tinydoc")
        expect(self.page.locator("#notice")).to_be_empty()

    def test_a_cache_that_has_kept_nothing(self):
        self.click("1. Ask")
        self.click("2. Ask")
        self.proxy.more = {"cache_salt": "another"}  # nothing is there under it
        self.click("3. Ask")
        expect(self.page.locator(".card .verdict")).to_contain_text("Nothing came from the cache: this server keeps nothing, or too little to have kept it")
        expect(self.page.locator(".tour li").nth(1)).to_contain_text("Nothing was reused.")

    def test_a_question_of_ones_own(self):
        expect(self.page.locator(".tour")).to_have_count(1)
        self.assertEqual(self.ask(DATE, PAGE), RIGHT[DATE])
        expect(self.page.locator(".tour")).to_have_count(0)
        self.page.click("#new")
        expect(self.page.locator(".tour")).to_have_count(0)  # it was the first open
        self.page.click("#open-help")
        self.page.click("#take-tour")
        expect(self.page.locator(".tour")).to_have_count(1)
        self.page.click("text=No, thanks")
        expect(self.page.locator(".tour")).to_have_count(0)

    def test_a_text_model_gets_a_letter(self):
        self.proxy.props = {"model_alias": "words", "modalities": {"vision": False}, "default_generation_settings": {"n_ctx": 4096}, "limits": {"image_pixels": 64_000_000}}
        self.page.reload()
        for text in ("1. Ask about this letter", "2. Ask with a tenth", "3. Ask again"):
            self.click(text)
            content = self.proxy.bodies[-1]["messages"][0]["content"]
            self.assertIn("The invoice, number KT4821, comes to 435.75", content)
        expect(self.page.locator(".card .verdict")).to_contain_text("of the question came from the cache")
        expect(self.page.locator(".tour li").nth(2)).to_contain_text("the letter among them")


class TourWithoutReuse(PageTest):
    TOUR = True
    FLAGS = ("--reuse", "off")
    VIEWPORT = {"width": 390, "height": 844}
    click = Tour.click

    def test_the_third_card_says_why_nothing_was_reused(self):
        self.assert_in_view(".tour button.main")
        for text in ("1. Ask", "2. Ask", "3. Ask"):
            self.click(text)
            self.assert_in_view(".answer" if text != "3. Ask" else ".answer .text", ".tour button.main")  # on a phone
        expect(self.page.locator(".card .verdict")).to_contain_text("Nothing came from the cache: reuse is switched off on this server")
        expect(self.page.locator(".tour li").nth(1)).to_contain_text("Nothing was reused.")
        expect(self.page.locator(".tour li").nth(2)).to_contain_text("reuse is switched off on this server")


class Pictures(PageTest):
    def test_a_picture_opens_large_beside_its_answer(self):
        page = self.page
        self.choose(a_kv="snapkv", a_budget="0.5")
        self.ask("What is the GATE?", DEMO / "two-1.png", DEMO / "two-2.png")
        page.locator(".question .picture").nth(1).click()
        viewer, image = page.locator("#viewer"), page.locator(".stage img")
        expect(viewer.locator("h2")).to_have_text("two-2.png")
        expect(viewer.locator(".beside")).to_contain_text("of its 256 tokens are kept")
        width = lambda: image.bounding_box()["width"]
        fitted = width()
        self.assertGreater(fitted, 400)
        page.keyboard.press("+")
        self.wait_until(lambda: width() > 1.2 * fitted)
        page.keyboard.press("1")
        self.wait_until(lambda: round(width()) == 224)
        page.keyboard.press("0")
        self.wait_until(lambda: round(width()) == round(fitted))
        viewer.locator("label:has-text('show what is kept') input").check()
        expect(viewer.locator(".veil g rect").first).to_be_attached()
        self.shot("viewer")
        page.keyboard.press("PageDown")
        expect(viewer.locator("h2")).to_have_text("two-1.png")
        page.keyboard.press("Escape")
        expect(viewer).not_to_be_visible()


class FullServer(PageTest):
    FLAGS = ("--parallel", "1", "--max-waiting", "1")

    def test_a_full_queue_is_reported(self):
        others = []
        for place in ("running", "waiting"):
            others.append(self.keep_busy())
            self.wait_until(lambda: self.state()["requests"][place] == 1)
        self.ask(TOTAL, PAGE)
        expect(self.page.locator(".answer")).to_contain_text("too many requests wait already")
        expect(self.page.locator(".answer")).to_contain_text("Try again in 1 s.")
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
        """What a screen reader is told: the browser's accessibility tree."""
        self.choose(a_kv="full", compare=True, b_kv="snapkv", b_budget="0.5")
        self.ask(TOTAL, PAGE)
        expect(self.page.locator("#status")).to_contain_text(RIGHT[TOTAL])
        self.attach(PAGE)
        self.open_card()
        self.page.click("#open-live")
        cdp = self.context.new_cdp_session(self.page)
        for opener in (None, "#open-settings", "#open-help", ".question .picture"):
            if opener:
                self.page.click(opener)
            nodes = [n for n in cdp.send("Accessibility.getFullAXTree")["nodes"] if not n["ignored"]]
            named = {(n["role"]["value"], n["name"]["value"].strip()) for n in nodes if "role" in n and "name" in n}
            roles = {"button", "textbox", "searchbox", "spinbutton", "checkbox", "combobox", "image", "meter", "progressbar", "link", "dialog", "region", "navigation", "DisclosureTriangle"}
            self.assertEqual([n for n in named if n[0] in roles and not n[1]], [], opener)
            if opener is None:
                for expected in (("heading", "vlcache"), ("navigation", "Conversations"), ("searchbox", "Search conversations"), ("textbox", "Question"),
                                 ("article", "Question"), ("article", "Answer, full"), ("region", "Both answers compared"), ("columnheader", "snapkv 0.5")):
                    self.assertIn(expected, named)
            else:
                self.assertTrue(any(role == "dialog" for role, _ in named), opener)
                self.page.keyboard.press("Escape")

    def test_texts_have_contrast(self):
        """4.5 to 1 at least (WCAG AA), in both schemes, of every text that is shown."""
        self.say("<think>so</think>\n# Head\n`code` [link](https://a.example/) $x$\n\n> said\n\n| a |\n|---|\n| 1 |\n\n```js\nlet x;\n```")
        self.ask(TOTAL, PAGE)
        self.proxy.script = None
        self.choose(a_kv="full", compare=True, b_kv="window", b_budget="0.3")
        self.ask("What is the NAME?")
        self.open_card()
        self.page.click("#open-live")
        expect(self.page.locator("#live")).to_contain_text("Requests")
        self.page.set_input_files("#files", [{"name": "a.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.7"}, {"name": "a.bin", "mimeType": "", "buffer": b"\0"}])  # an error is shown
        def open_tour():
            self.page.click("#open-help")
            self.page.click("#take-tour")
        for opens, closes in ((lambda: None, lambda: None), (lambda: self.page.click("#open-settings"), lambda: self.page.keyboard.press("Escape")),
                              (lambda: self.page.locator(".picture").last.click(), lambda: self.page.keyboard.press("Escape")), (open_tour, lambda: None)):
            opens()
            for scheme in ("light", "dark"):
                self.page.emulate_media(color_scheme=scheme)
                weak = self.page.evaluate(WEAK_TEXTS)
                self.assertEqual(weak["bad"], [], scheme)
                self.assertGreater(weak["seen"], 30)
            closes()

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
        for words in ("Requests", "KV pages", "Beginnings of prompts", "hits", "Images encoded before"):
            expect(live).to_contain_text(words)
        self.page.click("#new")
        self.ask(DATE, PAGE)  # its page is found in the beginning of the prompt before
        stats = self.state()
        within, images, prompts = stats["images_in_prefixes"]["images"], stats["image_kv"], stats["prefix"]
        found = within + images["hits"]
        self.assertGreater(within, 0)
        self.assertGreaterEqual(stats["images_in_prefixes"]["tokens"], 256 * within)
        expect(live.locator("section:has(h3:text-is('Images read before')) dd").first).to_have_text(
            f"{found} of {found + images['misses']} ({int(100 * found / (found + images['misses']) + 0.5)} %)")
        share = 100 * (prompts["tokens"] + images["tokens"]) / prompts["asked_tokens"]
        expect(live.locator(".verdict")).to_contain_text(f"Since this server started: {int(share + 0.5)} % of what was asked had been read before")
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

    def drop(self, *files):
        """Files (name, bytes), as the browser would tell of them."""
        self.page.evaluate("""(files) => {
            const transfer = new DataTransfer();
            for (const [name, data] of files) transfer.items.add(new File([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))], name));
            document.body.dispatchEvent(new DragEvent('drop', {dataTransfer: transfer, bubbles: true, cancelable: true}));
        }""", [[name, base64.b64encode(data).decode()] for name, data in files])

    def test_files_of_all_kinds_are_dropped(self):
        self.drop(("one.png", PAGE.read_bytes()), ("notes.txt", b"LAMP 12"), ("invoice.pdf", b"%PDF-1.7"), ("two.png", (DEMO / "table.png").read_bytes()))
        expect(self.page.locator("#attached li")).to_have_count(4)
        expect(self.page.locator("#attached")).to_contain_text("7 characters")
        self.ask(TOTAL)
        self.assertEqual([part["type"] for part in self.proxy.bodies[-1]["messages"][0]["content"]], ["file", "image_url", "image_url", "text"])
        expect(self.page.locator(".answer .wrong")).to_contain_text("The PDF: the PDF cannot be read: it is damaged")

    def test_clips_are_sent_with_the_choice_of_frames(self):
        self.proxy.props = {"model_alias": "watcher", "modalities": {"vision": True, "video": True}, "default_generation_settings": {"n_ctx": 4096}, "limits": {"image_pixels": 64_000_000}}
        self.proxy.script = [{"content": "A row of squares."}]
        self.page = self.open()
        clip = (ROOT / "tests/fixtures/video/uneven.webm").read_bytes()
        self.drop(("clip.webm", clip))
        expect(self.page.locator("#attached")).to_contain_text("clip.webm, 3.59 s")
        expect(self.page.locator("#attached img")).to_have_count(1)
        rate, most = (self.page.locator("#attached input").nth(i) for i in (0, 1))
        most.fill("x")
        self.send("What?")
        expect(self.page.locator("#notice")).to_have_text("clip.webm: frames a second may be above 0 to 1000, frames at most 1 to 4096.")
        rate.fill("0.5")
        most.fill("8")
        self.assertEqual(self.ask("What?"), "A row of squares.")
        part = self.proxy.bodies[-1]["messages"][0]["content"][0]
        self.assertEqual((part["type"], part["fps"], part["max_frames"]), ("video_url", 0.5, 8))
        self.assertEqual(part["video_url"]["url"], "data:video/webm;base64," + base64.b64encode(clip).decode())
        shown = "clip.webm, 3.59 s, 0.5 frames a second, 8 frames at most"
        expect(self.page.locator(".question .file")).to_have_text(shown)
        self.page.reload()
        with self.page.expect_download() as download:
            self.page.click("#export")
        self.page.set_input_files("#import-files", download.value.path())
        expect(self.page.locator(".question .file")).to_have_text(shown)

    def test_a_model_without_a_rule_for_videos_says_so(self):
        self.drop(("clip.mp4", (ROOT / "tests/fixtures/video/long_gop.mp4").read_bytes()))
        expect(self.page.locator("#notice")).to_contain_text("reads no videos: it cannot see clip.mp4")
        expect(self.page.locator("#attached li")).to_have_count(0)

    @unittest.skipIf(shutil.which("pdftocairo") is None, "poppler-utils is not installed")
    def test_pages_of_a_pdf(self):
        self.drop(("book.pdf", make_pdf("Nothing", PAGE, *["x"] * 100)))
        pages = self.page.locator("#attached input")
        self.ask(TOTAL)
        expect(self.page.locator(".answer .wrong")).to_have_text("The PDF: the PDF has 102 pages; expected at most 64; write which pages beside its name, such as 1-3.")
        self.page.click("#new")
        self.drop(("book.pdf", make_pdf("Nothing", PAGE)))
        pages.fill("3-1x")
        self.send(TOTAL)
        expect(self.page.locator("#notice")).to_have_text("book.pdf: “3-1x” names no pages; write them as 3-7 or 1,4-6.")
        pages.fill(" 2")
        self.assertEqual(self.ask(TOTAL), RIGHT[TOTAL])
        file = self.proxy.bodies[-1]["messages"][0]["content"][0]
        self.assertEqual((file["file"]["filename"], file["vlcache"]), ("book.pdf", {"pages": "2"}))
        expect(self.page.locator(".question .file")).to_have_text("book.pdf, page 2")
        self.page.reload()
        self.assertEqual(self.ask(DATE), RIGHT[DATE])  # it is kept with the conversation
        expect(self.page.locator(".card .verdict").last).to_contain_text("100 % of this image came from the cache:")
        with self.page.expect_download() as download:
            self.page.click("#export")
        self.page.set_input_files("#import-files", download.value.path())
        expect(self.page.locator(".question .file")).to_have_text("book.pdf, page 2")
        self.assertEqual(self.ask(TOTAL), RIGHT[TOTAL])

    def test_pages_of_a_tiff(self):  # which no browser shows as an image
        self.drop(("scan.tif", make_tiff(DEMO / "table.png", PAGE)))
        self.page.locator("#attached input").fill("2")
        self.assertEqual(self.ask(TOTAL), RIGHT[TOTAL])
        part = self.proxy.bodies[-1]["messages"][0]["content"][0]
        self.assertEqual((part["type"], part["file"]["filename"], part["vlcache"]), ("file", "scan.tif", {"pages": "2"}))
        expect(self.page.locator(".question .file")).to_have_text("scan.tif, page 2")
        expect(self.page.locator(".question img")).to_have_count(0)

    def test_dialogs_fit(self):
        for width, height in ((360, 640), (850, 600), (1200, 500)):
            self.page.set_viewport_size({"width": width, "height": height})
            for opener, dialog in (("#open-settings", "#settings"), ("#open-help", "#help")):
                self.page.click(opener)
                self.page.locator("#settings details").evaluate("(fold) => (fold.open = true)")
                self.page.locator("#settings [name=compare]").evaluate("(box) => { box.checked = true; box.dispatchEvent(new Event('input', {bubbles: true})); }")
                for part in (dialog, f"{dialog} button.main"):
                    box = self.page.locator(part).bounding_box()
                    self.assertTrue(box["x"] >= 0 and box["y"] >= 0 and box["x"] + box["width"] <= width and box["y"] + box["height"] <= height, (width, part, box))
                self.page.click(f"{dialog} button.main")
            self.assertLessEqual(self.page.evaluate("document.documentElement.scrollWidth"), width)

    def test_unchanged_files_are_not_sent_again(self):
        self.page.reload()
        self.page.wait_for_selector("html[data-ready]")
        statuses = []
        self.page.on("response", lambda r: statuses.append(r.status) if "/page/" in r.url else None)
        etag = self.page.request.get(self.base + "page/style.css").headers["etag"]
        self.assertEqual(self.page.request.get(self.base + "page/style.css", headers={"if-none-match": etag}).status, 304)


class MeasuredReuse(PageTest):
    @classmethod
    def setUpClass(cls):
        plan = json.loads((MODEL / "reuse_plan.json").read_text())
        nothing = {"cases": 0, "equal": 0, "kl": 0}
        cls.plan = tempfile.NamedTemporaryFile("w", suffix=".json")
        cls.addClassCleanup(cls.plan.close)
        json.dump({**plan, "one_image": nothing, "several_images": nothing, "looking": ""}, cls.plan)
        cls.plan.flush()
        cls.FLAGS = ("--reuse-plan", cls.plan.name)
        super().setUpClass()

    def test_the_live_panel_says_whether_images_are_reused(self):
        self.page.click("#open-live")
        reuse = self.page.locator("#live section:has(h3:text-is('Reuse of images'))")
        expect(reuse.locator("dt:text-is('one in a prompt') + dd")).to_have_text("nothing measured yet")
        for before in ("Be brief.", "Read the page.", "Look at it."):
            self.choose(system=before)
            self.page.click("#new")
            self.ask(TOTAL, PAGE)
        expect(reuse.locator("dt:text-is('one in a prompt') + dd")).to_contain_text("measured on")


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
        page.click("#live >> text=Close")
        page.click("#open-list")
        page.click(f"nav >> text={TOTAL}")
        page.click(".question .picture")
        for part in (".stage", "#viewer button:text-is('Close')", ".beside"):
            box = page.locator(part).bounding_box()
            self.assertTrue(box["x"] >= 0 and box["x"] + box["width"] <= 360 and box["y"] + box["height"] <= 640 and box["height"] > 30, (part, box))

    def test_side_by_side_answers_are_stacked(self):
        self.choose(compare=True)
        self.ask(TOTAL, PAGE)
        self.assertEqual(self.page.locator(".answer h3").all_inner_texts(), ["the server’s settings", "draft 0.1"])  # unless told otherwise
        self.page.set_viewport_size({"width": 390, "height": 844})
        self.page.click("text=Regenerate")
        expect(self.page.locator(".comparison")).to_be_visible()
        self.assert_in_view(".answer", ".comparison .verdict")
        first, second = (a.bounding_box() for a in self.page.locator(".answer").all())
        self.assertGreaterEqual(second["y"], first["y"] + first["height"])
        self.assertLessEqual(self.width(), 390)


if __name__ == "__main__":
    unittest.main()
