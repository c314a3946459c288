"""A terminal's screen: the few control sequences that libedit sends, wide characters, and lines wrapped again when the width changes."""
import re
import unicodedata

SEQUENCE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z@])")


def columns(c):
    return 0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1


class Screen:
    """rows: lists of cells; the second cell of a wide character is ''. A row in `soft` goes on in the next one."""

    def __init__(self, width, reflows=True):
        self.width, self.reflows = width, reflows
        self.rows, self.soft, self.y, self.x, self.inserts = [[]], set(), 0, 0, False

    def text(self):
        return ["".join(row).rstrip() for row in self.rows]

    def feed(self, text):
        """Returns the bytes of an incomplete sequence at the end."""
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                match = SEQUENCE.match(text, at)
                if not match:
                    return text[at:]
                self.command(match[2], match[1])
                at = match.end()
                continue
            self.put(text[at])
            at += 1
        return ""

    def put(self, c):
        if c == "\r":
            self.x = 0
        elif c == "\n":
            self.down()
        elif c == "\b":
            self.x = min(max(self.x - 1, 0), self.width - 2)
        elif c == "\t":
            self.x = min(self.x // 8 * 8 + 8, self.width - 1)
        elif c >= " ":
            n = columns(c)
            if n == 0:
                self.rows[self.y][self.x - 1] += c
                return
            if self.x + n > self.width:  # not before: the cursor stays after the last column
                self.soft.add(self.y)
                self.down()
                self.x = 0
            row = self.rows[self.y]
            row += [" "] * (self.x - len(row))
            row[self.x:self.x if self.inserts else self.x + n] = [c, ""][:n]
            del row[self.width:]
            self.x += n

    def down(self):
        self.y += 1
        if self.y == len(self.rows):
            self.rows.append([])

    def command(self, letter, numbers):
        n = int(numbers) if numbers.isdigit() else 0
        row = self.rows[self.y]
        if letter in "ABCD":
            step = max(n, 1)
            self.y = min(max(self.y + {"A": -step, "B": step}.get(letter, 0), 0), len(self.rows) - 1)
            self.x = min(max(min(self.x, self.width - 1) + {"C": step, "D": -step}.get(letter, 0), 0), self.width - 1)
        elif letter == "G":
            self.x = max(n, 1) - 1
        elif letter in "JK" and n == 0:
            del row[self.x:]
            self.soft.discard(self.y)
            if letter == "J":
                del self.rows[self.y + 1:]
                self.soft = {y for y in self.soft if y < self.y}
        elif letter == "P":
            del row[self.x:self.x + max(n, 1)]
        elif letter == "@":
            row[self.x:self.x] = [" "] * max(n, 1)
        elif letter in "hl" and numbers == "4":
            self.inserts = letter == "h"
        elif letter not in "mhl":
            raise AssertionError(f"ESC [ {numbers} {letter}: not known to this screen")

    def resize(self, width):
        if not self.reflows:
            self.width, self.x = width, min(self.x, width - 1)
            self.rows = [row[:width] for row in self.rows]
            return
        lines, cursor, line = [], None, []
        for y, row in enumerate(self.rows):
            if y == self.y:
                cursor = (len(lines), len(line) + self.x)
            line += row
            if y not in self.soft:
                lines.append(line)
                line = []
        if line:
            lines.append(line)
        self.width, self.rows, self.soft = width, [], set()
        for number, line in enumerate(lines):
            begin = 0
            while True:
                end = min(begin + width, len(line))
                if end < len(line) and line[end] == "":  # no half of a wide character
                    end -= 1
                self.rows.append(line[begin:end])
                if number == cursor[0] and cursor[1] >= begin:
                    self.y, self.x = len(self.rows) - 1, min(cursor[1] - begin, width - 1)
                if end >= len(line):
                    break
                self.soft.add(len(self.rows) - 1)
                begin = end
