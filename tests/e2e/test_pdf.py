"""PDFs as users and clients send them: their pages are images, each by itself to the caches."""
import base64
import ctypes
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from program import MODEL, PAGE, ROOT, VLCACHE, ProgramTest, run
from pdf_maker import make_pdf
from server import ServerProcess
from test_server import FORM, QUESTION, Server, form
from tiff_maker import make_tiff

DEMO = MODEL / "demo"
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
ENCRYPTED = ROOT / "tests/fixtures/pdf/encrypted.pdf"
BOOK = make_pdf("Nothing", PAGE, DEMO / "table.png", DEMO / "two-1.png", DEMO / "two-2.png")  # two-1.png is PAGE
RUN = ("run", "-m", MODEL, "--temperature", "0", "-n", "16", "--dtype", "f32")


def setUpModule():
    if shutil.which("pdftocairo") is None:
        raise unittest.SkipTest("poppler-utils is not installed (tools/install_deps.sh)")


class PdfFiles(ProgramTest):
    def setUp(self):
        super().setUp()
        self.book = self.folder / "book.pdf"
        self.book.write_bytes(BOOK)

    def test_pages_are_read(self):
        self.assertEqual(self.ok(*RUN, "-i", f"{self.book}#2", QUESTION).strip(), "TOTAL: 435.75")
        self.assertEqual(self.ok(*RUN, "-i", f"{self.book}#4-5", "What is the GATE?").strip(), "GATE: 42")
        both = self.json(*RUN, "-i", f"{self.book}#2,3", "--json", "hi")
        self.assertEqual(len(both["cache"]["images"]), 2)
        self.assertEqual(len(self.json(*RUN, "-i", self.book, "--json", "hi")["cache"]["images"]), 5)

    def test_pages_of_a_tiff_are_read(self):
        scan = self.folder / "scan.tif"
        scan.write_bytes(make_tiff(DEMO / "table.png", PAGE))
        page, image = (self.json(*RUN, "-i", path, "--json", QUESTION) for path in (f"{scan}#2", PAGE))
        self.assertEqual([found["hash"] for found in page["cache"]["images"]], [image["cache"]["images"][0]["hash"]])
        self.fails(*RUN, "-i", f"{scan}#3", "hi", says="the TIFF has 2 pages, and there is no page 3")

    def test_a_page_in_its_own_size_is_the_picture_itself(self):
        page, image = (self.json(*RUN, "-i", path, "--json", QUESTION) for path in (f"{self.book}#2", PAGE))
        self.assertEqual(page["cache"]["images"][0]["hash"], image["cache"]["images"][0]["hash"])

    def test_a_document_that_is_asked_twice_is_read_once(self):
        lines = [{"prompt": question, "images": [str(self.book)], "reuse": reuse} for question, reuse in (("A?", "exact"), ("B?", "exact"))]
        lines.append({"messages": [{"role": "user", "content": [{"type": "image", "image": f"{self.book}#5,3"}, {"type": "text", "text": "C?"}]}]})
        first, again, other = self.lines_of(*RUN, "--requests", "-", stdin="".join(json.dumps(line) + "\n" for line in lines))
        self.assertEqual([image["encoder"] for image in first["cache"]["images"]], ["computed"] * 3 + ["hit", "computed"])
        self.assertEqual([image["source"] for image in again["cache"]["images"]], ["prefix"] * 5)
        self.assertEqual([image["encoder"] for image in other["cache"]["images"]], ["hit"] * 2)
        self.assertEqual([image["hash"] for image in other["cache"]["images"]], [first["cache"]["images"][i]["hash"] for i in (4, 2)])

    def test_logits_takes_pages(self):
        out = self.folder / "out.safetensors"
        self.ok("logits", "-m", MODEL, "-i", f"{self.book}#2", "--pdf-text", "on", "-o", out, "hi")
        self.assertGreater(out.stat().st_size, 1000)

    def test_bad_documents(self):
        def refused(path, *says, **more):
            return self.fails(*RUN, "-i", path, "hi", says=[str(path).partition("#")[0], *says], **more)
        refused(f"{self.book}#7", "the PDF has 5 pages, and there is no page 7")
        refused(f"{self.book}#3-1", "expected pages such as 3-7 or 1,4-6, found '3-1'")
        refused(ENCRYPTED, "the PDF is encrypted and needs a password")
        refused(f"{PAGE}#1", "expected pages of a PDF alone")
        refused(f"{self.folder}/none.pdf#1", "no such image file")
        refused(self.book, "pdfinfo", "poppler-utils", env={"PATH": "/nowhere"})
        for name, content, says in (("cut.pdf", BOOK[:400], "damaged"), ("text.pdf", b"%PDF-1.7 and so on", "damaged"), ("long.pdf", make_pdf(*["x"] * 101), "select pages: "),
                                    ("empty.pdf", make_pdf(), "no pages"), ("none.pdf", b"", "none.pdf"), ("other.PDF", b"hello", "expected a PDF")):
            (self.folder / name).write_bytes(content)
            refused(self.folder / name, says)
        self.fails(*RUN, "--raw", "-i", f"{self.book}#1", "--pdf-text", "on", "<image>", says="--pdf-text has no place")

    def test_a_file_whose_name_has_the_mark_is_that_file(self):
        odd = self.folder / "a#2.pdf"
        odd.write_bytes(make_pdf(PAGE))
        self.assertEqual(self.ok(*RUN, "-i", odd, QUESTION).strip(), "TOTAL: 435.75")


class PdfChat(ProgramTest):
    def chat(self, *lines, args=()):
        p = run("chat", "-m", MODEL, "--max-tokens", "16", "--temperature", "0", "--dtype", "f32", *args, stdin="".join(f"{line}\n" for line in lines))
        self.assertEqual(p.returncode, 0, p.stderr)
        return [line.strip() for line in p.stdout.splitlines()], p.stderr

    def test_documents_are_attached(self):
        book, out = self.folder / "a book.pdf", self.folder / "out.json"
        book.write_bytes(BOOK)
        said, told = self.chat(f"/image '{book}#2,1'", QUESTION, f"/save {out}", "/reset", f"/load {out}", QUESTION, args=("--pdf-text", "on"))
        self.assertEqual(said, ["TOTAL: 435.75"] * 2)
        self.assertIn("2 pages, the first 224 x 224, go with the next message", told)
        pictures = json.loads(out.read_text())["messages"][0]["pictures"]
        self.assertEqual([picture["name"] for picture in pictures], ["a book.pdf#2", "a book.pdf#1"])
        self.assertEqual([picture.get("page_text") for picture in pictures], [None, "\n[Text of page 1 of a book.pdf]\nNothing\n[End of page 1]\n"])

    def test_a_conversation_of_the_page_is_continued(self):
        out = self.folder / "page.json"
        url = "data:application/pdf;base64," + base64.b64encode(BOOK).decode()
        out.write_text(json.dumps({"name": "n", "messages": [{"role": "user", "text": "q", "documents": [{"name": "b.pdf", "pages": "2", "url": url}]},
                                                             {"role": "assistant", "answers": [{"text": "a", "state": "done"}]}]}))
        said, told = self.chat(f"/load {out}", QUESTION)
        self.assertIn("1 image", told)
        self.assertEqual(said, ["TOTAL: 435.75"])


def file_part(pdf=BOOK, **more):
    return {"type": "file", "file": {"filename": "book.pdf", "file_data": "data:application/pdf;base64," + base64.b64encode(pdf).decode()}, **more}


class PdfServer(Server):
    @classmethod
    def setUpClass(cls):
        cls.place = pathlib.Path(tempfile.mkdtemp(prefix="vlcache-e2e-"))
        cls.addClassCleanup(shutil.rmtree, cls.place)
        (cls.place / "book.pdf").write_bytes(BOOK)
        cls.FLAGS = ("--image-path-prefix", cls.place, "--max-images", "5")
        super().setUpClass()

    def ask(self, content, question=QUESTION, **more):
        return self.chat({"messages": [{"role": "user", "content": [*content, {"type": "text", "text": question}]}], "max_tokens": 16, "temperature": 0, "vlcache": {"explain": True}, **more})

    def tokens(self, content, **more):
        status, answer = self.call("POST", "/tokenize", {"messages": [{"role": "user", "content": content}], **more})
        self.assertEqual(status, 200, answer)
        return answer["tokens"]

    def test_the_three_apis_read_the_same_pages(self):
        one = {"vlcache": {"pages": "2"}}
        data = base64.b64encode(BOOK).decode()
        answer = self.ask([file_part(**one)])
        self.assertEqual(answer["choices"][0]["message"]["content"].strip(), "TOTAL: 435.75")
        question = {"type": "input_text", "text": QUESTION}
        for source in ({"file_data": "data:application/pdf;base64," + data, "filename": "x"}, {"file_data": data}, {"file_url": f"file://{self.place}/book.pdf"}):
            status, said = self.call("POST", "/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_file", **source, **one}, question]}], "max_output_tokens": 16, "temperature": 0})
            self.assertEqual((status, said["usage"]["input_tokens"]), (200, answer["usage"]["prompt_tokens"]), said)
            self.assertEqual(said["output"][0]["content"][0]["text"].strip(), "TOTAL: 435.75")
        for source in ({"type": "base64", "media_type": "application/pdf", "data": data}, {"type": "url", "url": f"file://{self.place}/book.pdf"}):
            status, said = self.call("POST", "/v1/messages", {"messages": [{"role": "user", "content": [{"type": "document", "source": source, **one}, {"type": "text", "text": QUESTION}]}], "max_tokens": 16, "temperature": 0})
            self.assertEqual((status, said["content"][0]["text"].strip()), (200, "TOTAL: 435.75"), said)

    def test_a_tiff_is_read_wherever_a_pdf_or_an_image_is(self):
        one, two = (base64.b64encode(make_tiff(*paths, order=order, deflate=True)).decode() for paths, order in (((PAGE,), ">"), ((DEMO / "table.png", PAGE), "<")))
        uri = "data:image/tiff;base64,"
        first = self.ask([{"type": "image_url", "image_url": {"url": uri + one}}])
        self.assertEqual(first["choices"][0]["message"]["content"].strip(), "TOTAL: 435.75")
        both = self.ask([{"type": "image_url", "image_url": {"url": uri + two}}], "One?")["vlcache"]["cache"]["images"]
        self.assertEqual([len(both), both[1]["hash"], both[1]["encoder"]], [2, first["vlcache"]["cache"]["images"][0]["hash"], "hit"])
        again = self.ask([{"type": "file", "file": {"file_data": uri + two, "filename": "a.tif"}, "vlcache": {"pages": "2"}}])
        self.assertEqual(again["choices"][0]["message"]["content"], first["choices"][0]["message"]["content"])
        source = {"type": "base64", "media_type": "image/tiff", "data": two}
        for block in ({"type": "document", "source": source, "vlcache": {"pages": "2"}}, {"type": "image", "source": {**source, "data": one}}):
            status, said = self.call("POST", "/v1/messages", {"messages": [{"role": "user", "content": [block, {"type": "text", "text": QUESTION}]}], "max_tokens": 16, "temperature": 0})
            self.assertEqual((status, said["content"][0]["text"].strip()), (200, "TOTAL: 435.75"), said)
        six = base64.b64encode(make_tiff(*[PAGE] * 6, deflate=True)).decode()
        for part, advice in (({"type": "image_url", "image_url": {"url": uri + six}}, "send it as a file"), (file_part(make_tiff(*[PAGE] * 6, deflate=True)), "select pages with")):
            status, answer = self.call("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": [part]}]})
            self.assertEqual(status, 400, answer)
            self.assertIn(f"the TIFF has 6 pages; expected at most 5; {advice}", answer["error"]["message"])

    def test_an_uploaded_document(self):
        # As google-adk does through LiteLLM: the upload has neither a name nor a type.
        status, made = self.call("POST", "/v1/files", form(BOOK), FORM)
        self.assertEqual((status, made["bytes"], made["filename"]), (200, len(BOOK), "upload"), made)
        part = {"type": "file", "file": {"file_id": made["id"]}, "vlcache": {"pages": "2"}}
        self.assertEqual(self.ask([part])["choices"][0]["message"]["content"].strip(), "TOTAL: 435.75")
        again = self.ask([file_part(vlcache={"pages": "2"})], "Again?")["vlcache"]["cache"]["images"]
        self.assertEqual([image["source"] for image in again], ["prefix"])
        text = self.call("POST", "/v1/files", form(b"# A text", "a.md"), FORM)[1]["id"]
        for id, expected, says in (("file-1", 404, 'there is no file "file-1", or no longer'), (text, 400, "expected a PDF, found text")):
            status, answer = self.call("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": id}}]}]})
            self.assertEqual(status, expected, answer)
            self.assertIn(says, answer["error"]["message"])

    def test_a_document_that_is_sent_twice_is_read_once(self):
        pdf = make_pdf(*(DEMO / name for name in ("two-2.png", "two-1.png", "table.png")))
        first, again = (self.ask([file_part(pdf)], question)["vlcache"]["cache"]["images"] for question in ("One?", "Two?"))
        self.assertEqual([len(first), len(again)], [3, 3])
        self.assertEqual([image["source"] for image in again], ["prefix"] * 3)
        moved = self.ask([file_part(pdf, vlcache={"pages": "3,1"})], "Three?")["vlcache"]["cache"]["images"]
        self.assertEqual([image["encoder"] for image in moved], ["hit"] * 2)

    def test_texts_follow_their_pages(self):
        with_text = file_part(make_pdf("First", "Second"), vlcache={"pages": "2", "pdf_text": True})
        prompt = self.call("POST", "/detokenize", {"tokens": self.tokens([with_text])})[1]["prompt"]
        self.assertRegex(prompt, r"<image>\s*\[Text of page 2 of book\.pdf\]\nSecond\n\[End of page 2\]")
        both = self.call("POST", "/detokenize", {"tokens": self.tokens([file_part(make_pdf("First", "Second"))], vlcache={"pdf_text": True})})[1]["prompt"]
        # This model's template puts the images of a message first.
        self.assertRegex(both, r"<image>\s*\[Text of page 1 of book\.pdf\]\nFirst\n\[End of page 1\]\s*\[Text of page 2 of book\.pdf\]\nSecond")

    def test_bad_documents(self):
        for part, says, param in (
                ({"type": "file"}, "expected an object with file_data", "messages[0].content[0].file"),
                ({"type": "file", "file": {"file_data": "data:text/plain;base64,aGk="}}, "expected a data URI of a PDF", "messages[0].content[0].file.file_data"),
                ({"type": "file", "file": {"file_data": "https://x.example/a.pdf"}}, "expected a data URI (data:application/pdf;base64,...)", "messages[0].content[0].file.file_data"),
                ({"type": "file", "file": {"file_url": "file:///etc/passwd"}}, "expected a file in a folder that this server reads", "messages[0].content[0].file.file_url"),
                (file_part(b"%PDF-1.7"), "it is damaged", "messages[0].content[0].file"),
                (file_part(PAGE.read_bytes()), "expected a PDF, found an image", "messages[0].content[0].file"),
                (file_part(ENCRYPTED.read_bytes()), "the PDF is encrypted", "messages[0].content[0].file"),
                (file_part(make_pdf(*["x"] * 6)), "the PDF has 6 pages; expected at most 5; select pages with \"vlcache\": {\"pages\":", "messages[0].content[0].file"),
                (file_part(vlcache={"pages": "6"}), "there is no page 6", "messages[0].content[0].file"),
                (file_part(vlcache={"pages": "x"}), "expected pages such as 3-7", "messages[0].content[0].vlcache.pages"),
                (file_part(vlcache={"page": 1}), "expected pages or pdf_text", "messages[0].content[0].vlcache.page")):
            status, answer = self.call("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": [part]}]})
            self.assertEqual((status, answer["error"]["param"]), (400, param), answer)
            self.assertIn(says, answer["error"]["message"])
        self.assertEqual(self.ask([file_part(vlcache={"pages": 2})])["choices"][0]["message"]["content"].strip(), "TOTAL: 435.75")


def has_landlock():
    return ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1) > 0


class Sandboxed(ProgramTest):
    """Poppler's programs in a sandbox, of which an installation that it does not suit leaves out no more than it must."""

    def setUp(self):
        super().setUp()
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        self.book = self.folder / "book.pdf"
        self.book.write_bytes(BOOK)
        self.path = {"PATH": f"{self.bin}:{os.environ['PATH']}"}

    def install(self, name, script):
        (self.bin / name).write_text("#!/bin/sh\n" + script.replace("REAL", shutil.which(name)))
        (self.bin / name).chmod(0o755)

    def read(self):
        """What standard error says of the sandbox while a page is read."""
        p = run(*RUN, "-i", f"{self.book}#2", QUESTION, env=self.path)
        self.assertEqual((p.returncode, p.stdout.strip()), (0, "TOTAL: 435.75"), p.stderr)
        return [line for line in p.stderr.splitlines() if "Landlock" in line or "seccomp" in line]

    @unittest.skipUnless(has_landlock(), "the kernel has no Landlock")
    def test_what_suits_all_of_it_says_nothing(self):
        self.assertEqual(self.read(), [])
        shutil.copy(shutil.which("pdftocairo"), self.bin)
        self.assertEqual(self.read(), [])

    @unittest.skipUnless(has_landlock(), "the kernel has no Landlock")
    def test_a_script_in_the_programs_place_runs_without_landlock(self):
        self.install("pdftocairo", 'exec REAL "$@"\n')
        said = self.read()
        self.assertEqual(len(said), 1, said)
        self.assertIn("the programs that read PDFs run without Landlock: ", said[0])
        server = ServerProcess(["env", f"PATH={self.path['PATH']}", VLCACHE, "serve", "-m", MODEL, "--port", "0"])
        self.addCleanup(server.kill)
        self.assertEqual([line.rstrip() for line in server.log if "Landlock" in line], said)  # before it listens

    def test_a_script_that_starts_programs_runs_without_a_sandbox(self):
        self.install("pdftocairo", 'REAL "$@"\nexit $?\n')
        said = self.read()
        self.assertEqual(len(said), 1, said)
        self.assertIn("the programs that read PDFs run without a seccomp filter and Landlock: ", said[0])

    @unittest.skipUnless(has_landlock() and COMPILER, "the kernel has no Landlock, or there is no compiler")
    def test_a_program_that_was_taken_over_can_do_nothing(self):
        subprocess.run([COMPILER, "-std=c++20", "-o", self.bin / "pdfinfo", ROOT / "tests/sandbox_tries.cc", "-pthread"], check=True)
        self.fails(*RUN, "-i", self.book, "hi", says="cannot be read: it is damaged (not refused:)", env=self.path)


class StuckPrograms(ProgramTest):
    """A drawing program that never ends, and starts another one: the sandbox does not suit it."""

    def setUp(self):
        super().setUp()
        fake = self.folder / "bin"
        fake.mkdir()
        (fake / "pdftocairo").write_text(f'#!/bin/sh\nif [ "$(wc -c </proc/self/fd/3)" -lt 1000 ]; then {shutil.which("pdftocairo")} "$@"; exit; fi\nsleep 1000 &\nwait\n')
        (fake / "pdftocairo").chmod(0o755)
        self.server = ServerProcess(["env", f"PATH={fake}:{os.environ['PATH']}", VLCACHE, "serve", "-m", MODEL, "--port", "0", "--grace", "2"]).ready()
        self.addCleanup(self.server.kill)

    def helpers(self):
        """Processes of the server's children and theirs."""
        parents = {}
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                pid, fields = int(stat.parent.name), stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[pid] = int(fields[1])
        found, before = {self.server.process.pid}, 0
        while len(found) > before:
            before = len(found)
            found |= {pid for pid, parent in parents.items() if parent in found}
        return found - {self.server.process.pid}

    def wait_for(self, what):
        for _ in range(600):
            if what():
                return
            time.sleep(0.05)
        self.fail("it did not come to that")

    def ask(self):
        connection = self.server.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": [file_part()]}]}), {"content-type": "application/json"})
        return connection

    def test_a_client_that_hangs_up_leaves_no_process(self):
        connection = self.ask()
        self.wait_for(lambda: len(self.helpers()) == 2)
        left = self.helpers()
        connection.close()
        self.wait_for(lambda: not self.helpers())
        self.wait_for(lambda: not any(self.lives(pid) for pid in left))
        self.assertEqual(self.server.answer("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}).status, 200)

    def test_programs_end_with_the_grace(self):
        clients = [self.ask() for _ in range(8)]
        self.wait_for(lambda: len(self.helpers()) == 4)
        left, begin = self.helpers(), time.monotonic()
        self.server.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.server.process.wait(timeout=30), 0)
        self.assertLess(time.monotonic() - begin, 3)
        self.wait_for(lambda: not any(self.lives(pid) for pid in left))
        for client in clients:
            client.close()

    @staticmethod
    def lives(pid):
        try:
            return ") Z " not in pathlib.Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False

    def test_slow_pdfs_leave_threads_to_other_requests(self):
        clients = [self.ask() for _ in range(12)]
        refused = set()
        def count():
            ready, _, _ = select.select([c.sock for c in clients if c not in refused], [], [], 0)
            refused.update(c for c in clients if c.sock in ready)
            return len(refused) == 4
        self.wait_for(count)  # of the twelve eight are being read, by two programs at once
        for client in refused:
            response = client.getresponse()
            self.assertEqual((response.status, response.getheader("retry-after")), (429, "1"))
            self.assertIn("too many PDFs", response.read().decode())
        self.wait_for(lambda: len(self.helpers()) == 4)
        self.assertEqual(self.server.answer("GET", "/health").status, 200)
        for client in clients:
            client.close()
        self.wait_for(lambda: not self.helpers())
