"""`vlcache serve` in a process of its own, for tests and tools, and what its streams say."""
import atexit
import http.client
import json
import pathlib
import signal
import socket
import subprocess
import threading
import time


def data_of(lines):
    """What stands in a stream's lines of data, as text: JSON, and at last "[DONE]" where the endpoint says so."""
    for line in lines:
        line = line.decode() if isinstance(line, bytes) else line
        if line.startswith("data: "):
            yield line[6:].rstrip("\r\n")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def comes_to_listen(port):
    """Whether a program that was just started listens on this port, within ten seconds."""
    for _ in range(1000):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return True
        except OSError:
            time.sleep(0.01)
    return False


class ServerProcess:
    """Started by a command that contains "serve"; `port` is known once it listens, ready() waits until it answers."""

    def __init__(self, command):
        self.process = subprocess.Popen([str(part) for part in command], stderr=subprocess.PIPE, text=True)
        self.log = []  # lines of standard error
        for line in self.process.stderr:
            self.log.append(line)
            if "/v1 serves" in line:
                self.port = int(line.split("/v1")[0].rsplit(":", 1)[1])
                break
        else:
            raise RuntimeError(f"the server did not start (exit status {self.process.wait()}): {''.join(self.log)}")
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self.reader.start()
        atexit.register(self.kill)

    def connect(self, timeout=120):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def answer(self, method, path, body=None, headers={}, connection=None):
        """The response, its bytes in .text. `body`: bytes, a text, or what becomes JSON."""
        c = connection or self.connect()
        c.request(method, path, body if body is None or isinstance(body, (str, bytes)) else json.dumps(body), {"content-type": "application/json", **headers})
        r = c.getresponse()
        r.text = r.read()
        c.close()
        return r

    def get(self, path):
        return json.loads(self.answer("GET", path).text)

    def ready(self):
        while self.answer("GET", "/health").status != 200:
            time.sleep(0.05)
        return self

    def resident_bytes(self):
        lines = pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

    def end(self, timeout=120):
        """Has it end as an operator would; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=timeout)
        return self.kill()

    def kill(self):
        self.process.kill()
        self.reader.join()
        self.process.stderr.close()
        atexit.unregister(self.kill)
        return self.process.wait()
