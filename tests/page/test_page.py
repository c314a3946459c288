"""The page at / in a real browser: questions about real images, and how answers are shown."""
import base64
import json
import re
import tempfile
import threading
import time
import unittest

from browser import DATE, DEMO, MODEL, PAGE, RIGHT, TOTAL, PageTest, Proxy, WHY_NOT

if not WHY_NOT:
    from playwright.sync_api import expect


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
        self.wait_until(lambda: seen.add(text.inner_text()) or sum(t.startswith("I") for t in seen) > 3)
        self.assertFalse([t for t in seen if t.startswith("Waits")])  # there is no other side
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


if __name__ == "__main__":
    unittest.main()
