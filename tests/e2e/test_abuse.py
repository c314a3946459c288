"""Clients that mean no good, or know no better: the server says no, and goes on."""
import base64
import json
import pathlib
import resource
import socket
import struct
import time
import unittest
import zlib

from program import PAGE, SHADOWED
from test_server import Server, about


def png(width, height, rows=None, bits=8, color=0, last=0):
    """A black PNG of that size, but for its last row; `rows`: of as many rows only."""
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    n_bytes = (width * bits * (3 if color == 2 else 1) + 7) // 8
    line, end = b"\0" + bytes(n_bytes), b"\0" + bytes([last]) * n_bytes
    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(line) for _ in range((height if rows is None else rows) - 1)) + packer.compress(end) + packer.flush()
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def asking(data, kind="image/png"):
    url = f"data:{kind};base64," + base64.b64encode(data).decode()
    return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "?"}]}], "max_tokens": 2}


class Abuse(Server):
    FLAGS = ("--max-body", "8", "--max-megapixels", "64")

    def tearDown(self):
        self.wait_until_idle()
        self.assertEqual(self.call("GET", "/health"), (200, {"status": "ok"}))

    def memory(self):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) >> 10  # MiB

    def raw(self, *pieces, timeout=30):
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as s:
            try:
                for piece in pieces:
                    s.sendall(piece)
            except OSError:
                pass  # it does not listen any more
            reply = b""
            try:
                while piece := s.recv(65536):
                    reply += piece
            except ConnectionResetError:
                pass
        return reply

    def refused(self, body, param="messages[0].content[0].image_url", statuses=(400,)):
        begin = time.monotonic()
        status, answer = self.call("POST", "/v1/chat/completions", body)
        self.assertIn(status, statuses, answer)
        self.assertEqual(answer["error"]["param"], param)
        self.assertLess(time.monotonic() - begin, 10)
        return answer["error"]["message"]

    def test_malformed_json(self):
        whole = json.dumps(about(PAGE))
        for body in (b"", b"{", b"[" * 100_000, b'{"a":' * 5000, whole[:-1], whole + "x", b'{"messages": nan}', b'{"messages": [1e999]}', b"\0" * 100,
                     b'{"messages":[{"role":"user","content":"\xff\xfe"}]}', b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}', b'\xef\xbb\xbf\xef\xbb\xbf{}'):
            status, answer = self.call("POST", "/v1/chat/completions", body)
            self.assertEqual((status, answer["error"]["type"]), (400, "invalid_request_error"), body[:20])
        self.assertEqual(self.call("POST", "/tokenize", b'{"prompt": "\xff"}')[0], 400)

    def test_bodies_of_a_gigabyte(self):
        before = self.memory()
        reply = self.raw(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1073741824\r\n\r\n", *[b" " * (1 << 20)] * 64)
        self.assertTrue(reply.startswith(b"HTTP/1.1 413 "), reply[:100])
        piece = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
        reply = self.raw(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n", *[piece] * 64)
        self.assertTrue(reply == b"" or reply.startswith(b"HTTP/1.1 413 "), reply[:100])
        self.assertLess(self.memory() - before, 64)

    def test_headers(self):
        for request in (b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 100_000, b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"x: y\r\n" * 20_000, b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n"):
            self.assertTrue(self.raw(request).startswith(b"HTTP/1.1 431 "))
        for request in (b"GET /health HTTP/9.9\r\n\r\n", b"\0\0\0\0\r\n\r\n", b"GET /health\r\n\r\n", b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
                        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab", b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
                        b"GET /health HTTP/1.1\r\nhost: localhost\r\nbad header: x\r\n\r\n", b"GET /\xff\xfe\r\n HTTP/1.1\r\nhost: localhost\r\n\r\n"):
            reply = self.raw(request)
            self.assertTrue(reply.startswith(b"HTTP/1.1 4") or reply == b"", (request, reply[:100]))
        smuggled = self.raw(b"POST /v1/models HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n")
        self.assertNotIn(b"vllm:", smuggled)

    def test_paths(self):
        for path in ("/../../etc/passwd", "/..%2f..%2fetc%2fpasswd", "/%2e%2e/", "//etc/passwd", "/page/../../etc/passwd", "/page/%2e%2e/x", "/v1/models/..", "/v1/models%00", "/health/../metrics"):
            self.assertEqual(self.call("GET", path)[0], 404, path)

    def test_images_with_wrong_sizes(self):
        small = png(64, 64)
        self.assertEqual(self.call("POST", "/v1/chat/completions", asking(small))[0], 200)
        self.refused(asking(png(4000, 4000, rows=4)))
        self.refused(asking(small[:-20]))
        self.refused(asking(small.replace(struct.pack(">II", 64, 64), struct.pack(">II", 64, 6400))))
        self.refused(asking(b"GIF89a" + struct.pack("<HH", 65535, 65535) + b"\0\0\0;"), statuses=(400, 413))
        self.refused(asking(b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, 8000, 8000, 1, 24, 0, 0, 0, 0, 0, 0)), statuses=(400, 413))

    def test_images_of_a_hundred_megapixels(self):
        before = self.memory()
        for width, height in ((10_000, 10_000), (100_000_000, 1)):
            message = self.refused(asking(png(width, height, bits=1)), statuses=(413,))
            self.assertIn("pixels", message)
        self.refused(asking(png(2**31 - 1, 2**31 - 1, rows=0)), statuses=(400, 413))
        self.assertLess(self.memory() - before, 64)

    def test_data_of_other_types(self):
        for kind, data in (("text/html", b"<script>"), ("image/svg+xml", b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>"),
                           ("image/png", b"%PDF-1.7"), ("image/png", b"#!/bin/sh"), ("image/png", b"\x7fELF"), ("image/jpeg", b"PK\x03\x04"), ("application/pdf", b"GIF89a")):
            self.refused(asking(data, kind))

    def test_clients_that_disconnect(self):
        body = json.dumps({**about(PAGE, "Read."), "ignore_eos": True, "max_tokens": 100_000, "stream": True}).encode()
        whole = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        head = whole.index(b"\r\n\r\n") + 4
        for n in (0, 1, 20, head - 2, head, head + 1, (head + len(whole)) // 2, len(whole) - 1, len(whole)):
            for linger in (True, False):  # closed in order, and reset
                with socket.create_connection(("127.0.0.1", self.port)) as s:
                    s.sendall(whole[:n])
                    if not linger:
                        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for until in (b"HTTP/1.1 200", b'"role":"assistant"', b'"content":"'):  # in the stream
            with socket.create_connection(("127.0.0.1", self.port), timeout=60) as s:
                s.sendall(whole)
                seen = b""
                while until not in seen:
                    seen += s.recv(4096)
        self.wait_until_idle()
        for _ in range(100):
            text = self.call("GET", "/metrics")[1].decode()
            n = float(next(line for line in text.splitlines() if line.startswith("vlcache:connections{")).split()[-1])
            if n == 1:
                break
            time.sleep(0.1)
        self.assertEqual(n, 1)  # the one that asks

    def test_slow_clients_do_not_delay_requests(self):
        slow = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(200)]
        begin = time.monotonic()
        for i in range(5):
            for n, s in enumerate(slow):
                s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{"[i * 14 : i * 14 + 14] if n % 2 else b"G")
        self.assertLess(time.monotonic() - begin, 10)
        self.assertEqual(self.call("POST", "/v1/chat/completions", about(PAGE))[0], 200)
        for s in slow:
            s.close()

    def test_ten_thousand_idle_connections(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard < 10_500:
            self.skipTest(f"{hard} open files at most")
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        before = self.memory()
        idle = []
        try:
            for _ in range(10_000):
                idle.append(socket.create_connection(("127.0.0.1", self.port), timeout=30))
            begin = time.monotonic()
            self.assertEqual(self.call("GET", "/health")[0], 200)
            self.assertLess(time.monotonic() - begin, 2)
            self.assertEqual(self.call("POST", "/v1/chat/completions", about(PAGE))[0], 200)
            if not SHADOWED:
                self.assertLess(self.memory() - before, 200)
        finally:
            for s in idle:
                s.close()


if __name__ == "__main__":
    unittest.main()
