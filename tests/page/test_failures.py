"""The page at / in a real browser: what goes wrong with servers, files and settings."""
import base64
import re
import struct
import unittest
import zlib

from browser import DATE, DEMO, PAGE, RIGHT, TOTAL, PageTest, Proxy, WHY_NOT

if not WHY_NOT:
    from playwright.sync_api import expect


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
        self.send("LAMP 13 " * 3000)  # its length is not known
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


if __name__ == "__main__":
    unittest.main()
