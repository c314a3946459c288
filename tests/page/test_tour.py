"""The page at / in a real browser: the three clicks of its first open."""
import re
import unittest

from browser import DATE, PAGE, RIGHT, TOTAL, PageTest, Proxy, WHY_NOT

if not WHY_NOT:
    from playwright.sync_api import expect


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


if __name__ == "__main__":
    unittest.main()
