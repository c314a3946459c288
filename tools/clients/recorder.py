"""A proxy before a server, which keeps the bodies of requests."""
import gzip
import http.client
import http.server
import threading


class Recorder:
    """Listens on `port` of 127.0.0.1 and passes requests on to the server at `upstream`, a port. An answer is passed on when it is whole."""

    def __init__(self, upstream):
        self.sent, self.upstream = [], upstream
        recorder = self

        class Proxy(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def pass_on(self):
                body = self.rfile.read(int(self.headers["content-length"] or 0))
                if self.command == "POST":
                    recorder.sent.append((self.path, (gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body).decode()))
                connection = http.client.HTTPConnection("127.0.0.1", recorder.upstream, timeout=600)
                connection.request(self.command, self.path, body or None, {k: v for k, v in self.headers.items() if k.lower() not in ("host", "content-length")})
                response = connection.getresponse()
                answer = response.read()
                self.send_response(response.status)
                self.send_header("content-type", response.headers["content-type"] or "text/plain")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = do_HEAD = pass_on

            def log_message(self, *_): pass

        self.proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
        self.port = self.proxy.server_port
        threading.Thread(target=self.proxy.serve_forever, daemon=True).start()

    def take(self):
        """[(path, body)] of the posts since the last call."""
        sent, self.sent = self.sent, []
        return sent

    def close(self):
        self.proxy.shutdown()
        self.proxy.server_close()
