"""The page at / in a real browser: conversations that it keeps, over reloads, in tabs and in files."""
import base64
import json
import pathlib
import unittest

from browser import DATE, DEMO, PAGE, RIGHT, TOTAL, PageTest, WHY_NOT

if not WHY_NOT:
    from playwright.sync_api import expect


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


if __name__ == "__main__":
    unittest.main()
