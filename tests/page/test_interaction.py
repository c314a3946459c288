"""The page at / in a real browser: keys, focus, contrast, what is typed, and narrow screens."""
import base64
import shutil
import time
import unittest

from browser import DATE, DEMO, PAGE, RIGHT, ROOT, TOTAL, PageTest, WHY_NOT
from pdf_maker import make_pdf
from tiff_maker import make_tiff

if not WHY_NOT:
    from playwright.sync_api import expect

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
