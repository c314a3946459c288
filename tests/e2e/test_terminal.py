"""`vlcache` on a terminal: editing, pastes, dropped files, Ctrl-C in every phase, Markdown and colours."""
import codecs
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import termios
import time
import unittest

from program import MODEL, PAGE, ROOT, VLCACHE, ProgramTest, run
from pdf_maker import make_pdf
from screen import Screen, columns

LEFT, UP, END, TAB, CTRL_C, CTRL_D, BACKSPACE = "\x1b[D", "\x1b[A", "\x1b[F", "\t", "\x03", "\x04", "\x7f"
DEADLINE = 60  # seconds
QUIET = 0.1
ANSWER = r"Hello\r\n\x1b\[\?2004l(\r[^\n]*\x1b\[K)*\s*(?!reading)\w\w"  # to "Hello" has begun


def paste(text):
    return f"\x1b[200~{text}\x1b[201~"


def broken(text, width):
    """The rows in which a terminal shows a text."""
    rows, n = [""], 0
    for c in text:
        if n + columns(c) > width:
            rows[-1], n = rows[-1].rstrip(), 0
            rows.append("")
        rows[-1] += c
        n += columns(c)
    return [row.rstrip() for row in rows]


class Terminal:
    """A program on a pseudo-terminal of 100 columns; `seen`: what it has written; `screen`: where that is shown, from `read` on."""

    def __init__(self, args, env):
        self.seen, self.read, self.screen = "", 0, None
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe(args[0], args, {**os.environ, "TERM": "xterm-256color", **env})
        self.resize(100)

    def resize(self, columns):
        """As a terminal does it: the foreground process gets SIGWINCH. On a screen, what was written for the former width is shown before,
        and the line has been begun again at the end: what it wrote for one width would leave rows on another."""
        if self.screen:
            self.show_all()
            self.screen.resize(columns)
        begin = len(self.seen)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        while self.screen and "\x1b[J" not in self.seen[begin:]:
            self.receive(time.monotonic() + DEADLINE)

    def send(self, text):
        os.write(self.fd, text.encode())

    def receive(self, end):
        """Waits for more bytes, until that time."""
        if time.monotonic() > end or not select.select([self.fd], [], [], end - time.monotonic())[0]:
            raise AssertionError("nothing more came")
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            data = b""
        if not data:
            raise AssertionError("the program ended")
        self.seen += self.decoder.decode(data)

    def wait(self, pattern):
        """Waits until what has been written since the last call matches; returns that up to the match's end."""
        end = time.monotonic() + DEADLINE
        while True:
            if found := re.search(pattern, self.seen[self.read:]):
                text = self.seen[self.read:self.read + found.end()]
                self.read += found.end()
                return text
            try:
                self.receive(end)
            except AssertionError as error:
                raise AssertionError(f"{error}, no {pattern!r} in {self.seen[self.read:]!r}") from None

    def show_on(self, screen):
        """From the prompt on, which has been read."""
        self.screen = screen
        screen.feed("> ")

    def feed_screen(self):
        left = self.screen.feed(self.seen[self.read:])
        self.read = len(self.seen) - len(left)

    def show_all(self):
        """Shows what comes until nothing has come for QUIET seconds."""
        while select.select([self.fd], [], [], QUIET)[0]:
            self.receive(time.monotonic() + DEADLINE)
        self.feed_screen()

    def shows(self, line):
        """Waits until the screen is the prompt with this line, once."""
        end, rows = time.monotonic() + DEADLINE, broken("> " + line, self.screen.width)
        while True:
            self.feed_screen()
            shown = self.screen.text()
            while shown and not shown[-1]:  # the cursor's, after a full row
                shown.pop()
            if shown == rows:
                return
            try:
                self.receive(end)
            except AssertionError as error:
                raise AssertionError(f"expected {rows}, found {shown}") from error

    def prompt(self):
        """Waits until the editor waits for a message."""
        return self.wait(r"\x1b\[\?2004h[^\n]*> [^\n]*")

    def exit_code(self):
        try:
            while data := os.read(self.fd, 65536):
                self.seen += data.decode(errors="replace")
        except OSError:
            pass
        status = os.waitpid(self.pid, 0)[1]
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def interrupt_until_it_ends(self):
        """Ctrl-C, again and again, not so fast that the kernel makes one signal of two; how often, and the exit status."""
        for n in range(1, 20):
            self.send(CTRL_C)
            for _ in range(10):
                time.sleep(0.02)
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.pid = 0
                    return n, os.waitstatus_to_exitcode(status)
        raise AssertionError(f"{n} times Ctrl-C: {self.seen[self.read:]!r}")

    def close(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


class OnATerminal(ProgramTest):
    def setUp(self):
        super().setUp()
        self.env = {"HOME": str(self.folder), "XDG_STATE_HOME": str(self.folder / "state"), "LC_ALL": "C.UTF-8"}
        shutil.copy(PAGE, self.folder / "my page.png")
        self.history = self.folder / "state/vlcache/history"

    def start(self, *args, **env):
        terminal = Terminal([VLCACHE, *map(str, args)], {**self.env, **env})
        self.addCleanup(terminal.close)
        return terminal

    def chat(self, *args, model=MODEL, **env):
        terminal = self.start("chat", "-m", model, "--temperature", "0", "--max-tokens", "16", *args, **env)
        terminal.prompt()
        return terminal

    def questions(self, terminal):
        """The questions of the conversation, and the number of images of each."""
        terminal.send("/save ~/out.json\r")
        terminal.prompt()
        messages = json.loads((self.folder / "out.json").read_text())["messages"]
        return [(m["text"], len(m["pictures"])) for m in messages if m["role"] == "user"]

    def test_messages_are_edited(self):
        t = self.chat()
        t.send(f"'{self.folder}/my page.png' \r")  # as terminals write a dropped file
        t.wait(r"my page\.png: \d+ x \d+, goes with the next message")
        t.prompt()
        t.send("What is the TOTXL?" + LEFT * 2 + BACKSPACE + "A\r")
        self.assertIn("TOTAL: 435.75", t.prompt())
        lines = "one \u00fc\ttab\rtwo\x03\r\nthree\r"  # a paste may contain anything
        t.send(paste(lines) + "?\r")
        t.prompt()
        t.send(UP + "!\r")  # the whole message comes back
        t.prompt()
        t.send("/im" + TAB + "~/my" + TAB + "\r")
        t.wait(r"my page\.png: \d+ x \d+, goes with")
        t.prompt()
        t.send("to be cleared" + CTRL_C)
        t.wait(r"\^C")
        t.wait("> ")
        t.send("And?\r")
        t.prompt()
        pasted = "one \u00fc\ttab\ntwo\nthree?"
        self.assertEqual(self.questions(t), [("What is the TOTAL?", 1), (pasted, 0), (pasted + "!", 0), ("And?", 1)])
        self.assertEqual(self.history.stat().st_mode & 0o777, 0o600)
        t.send(CTRL_C)
        t.wait("Ctrl-C again")
        t.wait("> ")
        t.send(CTRL_C)
        self.assertEqual(t.exit_code(), 130)
        again = self.chat("--no-history")  # which is not empty, but neither read nor written
        before = self.history.read_text()
        again.send(UP + "Hello\r")
        again.prompt()
        self.assertEqual(self.questions(again), [("Hello", 0)])
        again.send(CTRL_D)
        self.assertEqual(again.exit_code(), 0)
        self.assertEqual(self.history.read_text(), before)
        later = self.chat()
        later.send(UP * 2 + "\r")  # the last message is /save
        later.prompt()
        self.assertEqual(self.questions(later), [("And?", 0)])

    @unittest.skipIf(shutil.which("pdftocairo") is None, "poppler-utils is not installed")
    def test_pages_of_a_pdf_are_dropped(self):
        (self.folder / "a book.pdf").write_bytes(make_pdf("Nothing", PAGE))
        t = self.chat()
        t.send(f"'{self.folder}/a book.pdf'#2 What is the TOTAL?\r")
        t.wait(r"a book\.pdf#2: 224 x 224, goes with the next message")
        self.assertIn("TOTAL: 435.75", t.prompt())
        t.send("~/a\\ book.pdf\r")
        t.wait(r"a book\.pdf: 2 pages, the first \d+ x \d+, go with the next message")
        t.prompt()
        t.send("And?\r")
        t.prompt()
        self.assertEqual(self.questions(t), [("What is the TOTAL?", 1), ("And?", 2)])

    def test_clips_are_dropped(self):
        shutil.copy(ROOT / "tests/fixtures/video/long_gop.mp4", self.folder / "a clip.mp4")
        t = self.chat(model=ROOT / "tests/fixtures/models/qwen3-vl-deepstack")
        t.send(f"'{self.folder}/a clip.mp4' \r")
        t.wait(r"a clip\.mp4: 5\.0 s, 150 frames of 64 x 48; \d+ tokens go with the next message")
        t.prompt()
        t.send("/video ~/none.mp4\r")
        t.wait(r"none\.mp4")
        t.prompt()
        t.send("What?\r")
        t.prompt()
        t.send("/save ~/out.json\r")
        t.prompt()
        message = json.loads((self.folder / "out.json").read_text())["messages"][0]
        self.assertEqual((message["text"], [video["name"] for video in message["videos"]]), ("What?", ["a clip.mp4"]))

    def test_ctrl_c_while_a_prompt_is_read_and_while_it_is_answered(self):
        t = self.chat("--prefill-chunk", "1", "--ignore-eos", "--max-tokens", "3000", "--backend", "ref")
        t.send("word " * 500 + "\r")
        t.wait(r"reading \[#* *\] +\d+%")
        t.send(CTRL_C)
        t.wait("the question is taken back")
        t.prompt()
        t.send("Hello\r")
        t.wait(ANSWER)
        t.send(CTRL_C)
        t.prompt()
        self.assertEqual(self.questions(t), [("Hello", 0)])

    def test_ctrl_c_again_and_again_ends_the_program_in_every_phase(self):
        """At most one for what is computed, one for a hint, one more. A second one that comes while the first has its effect is not handled: for a shell that is 130, too."""
        ended, slow = (130, -signal.SIGINT), ("--prefill-chunk", "1", "--ignore-eos", "--max-tokens", "3000", "--backend", "ref")
        for message, phase in (("word " * 500, r"reading \[#* *\] +\d+%"), ("Hello", ANSWER)):
            t = self.chat(*slow)
            t.send(message + "\r")
            t.wait(phase)
            n, code = t.interrupt_until_it_ends()
            self.assertIn(code, ended)
            self.assertIn(n, (2, 3))
        t = self.chat()
        t.send("to be cleared")
        t.wait("cleared")
        self.assertEqual(t.interrupt_until_it_ends(), (3, 130))
        t = self.start("chat", "-m", MODEL, "--backend", "ref")
        time.sleep(0.02)  # while it loads
        n, code = t.interrupt_until_it_ends()
        self.assertIn(code, ended)
        self.assertLessEqual(n, 3)

    def test_a_resized_terminal_shows_the_line_once(self):
        text = "abc def ghi " * 3 + "\u8acb\u6c42\u66f8\u306e\u5408\u8a08 " + "jkl mno " * 2
        for reflows, env in ((True, {}), (False, {"XTERM_VERSION": "XTerm(379)"})):
            with self.subTest(reflows=reflows):
                t = self.chat(**env)
                t.show_on(Screen(100, reflows))
                t.send(text)
                t.shows(text)
                for columns in (40, 13, 90, 31):  # drawn again without a key
                    t.resize(columns)
                    t.shows(text)
                t.send(LEFT * 12 + "Y")
                before, after = text[:-12], text[-12:]
                t.shows(before + "Y" + after)
                for columns in (50, 24, 100):
                    t.resize(columns)
                    t.shows(before + "Y" + after)
                t.send("Z" + BACKSPACE + "Z" + END + "!")
                t.shows(before + "YZ" + after + "!")
                t.send("\r")
                t.prompt()
                self.assertEqual(self.questions(t), [(before + "YZ" + after + "!", 0)])

    def test_a_resize_during_an_answer(self):
        t = self.chat("--ignore-eos", "--max-tokens", "300", "--backend", "ref")
        t.send("Hello\r")
        t.wait(ANSWER)
        t.resize(40)
        t.prompt()
        t.show_on(Screen(40))
        t.send("x" * 80 + LEFT * 70 + "Y")
        t.shows("x" * 10 + "Y" + "x" * 70)

    def test_help_and_mistyped_names(self):
        t = self.chat()
        t.resize(60)
        t.send("/help\r")
        lines = re.sub(r"\x1b\[\?2004.", "", t.prompt()).split("\r\n")
        self.assertEqual([line for line in lines[1:-1] if len(line) > 60], [])
        for word in ("dropped", "conversation", "(clip.mp4,fps=1,max_frames=64)"):
            self.assertIn(word, " ".join(lines).split(" "), lines)
        for typed, says in (("/hepl", "unknown command /hepl (did you mean '/help'?); /help lists all"), ("/x y", "unknown command /x; /help lists all"),
                            ("/tmp/no/nope.png", "no such file: /tmp/no/nope.png"), ("'/tmp/no/my nope.png' What?", "no such file: /tmp/no/my nope.png"),
                            (f"'{self.folder}/my page.png' ~/nope.png What?", f"no such file: {self.folder}/nope.png"), ("/tmp/ What?", "a message cannot begin with /tmp/: /image attaches")):
            t.send(typed + "\r")
            self.assertIn(says, t.prompt().replace("\r\n", "\n"))
        t.send("nope.png what is this?\r")
        t.wait(r"nope\.png: no such file; sent as text\r\n")
        t.prompt()
        self.assertEqual(self.questions(t), [("nope.png what is this?", 0)])

    def test_answers_are_rendered_on_terminals_alone(self):
        schema = self.write("schema.json", json.dumps({"const": "**b** `c`"}))
        ask = ("run", "-m", MODEL, "--temperature", "0", "--max-tokens", "40", "--json-schema", schema, "Hello")
        self.assertEqual(run(*ask).stdout, '"**b** `c`"\n')
        for flags, env, shown in (((), {}, '"\x1b[0m\x1b[1mb\x1b[0m \x1b[0m\x1b[36mc\x1b[0m"'), (("--plain",), {}, '"**b** `c`"'),
                                  ((), {"NO_COLOR": "1"}, '"\x1b[0m\x1b[1mb\x1b[0m \x1b[0m`c\x1b[0m`"')):
            t = self.start(*ask, *flags, **env)
            self.assertEqual(t.exit_code(), 0)
            self.assertIn(shown, t.seen)
