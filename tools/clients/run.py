#!/usr/bin/env python3
"""`make clients`: programs of today against `vlcache serve` on tinydoc, each as its users run it (programs.py).

    tools/clients/run.py [NAME ...] [--record]

Installs the versions of requirements.txt into build/clients (some hundred MB, once), prints a table program x case, and ends with 1 if one fails. --record
writes what they sent to tests/clients/recorded.jsonl, which CI replays without them."""
import argparse
import base64
import http.client
import http.server
import json
import pathlib
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests/e2e"), str(pathlib.Path(__file__).parent)]
from program import MODEL, PAGE, VLCACHE  # noqa: E402
from programs import CASES, PROGRAMS  # noqa: E402
from server import ServerProcess  # noqa: E402

HERE, FOLDER, RECORDED = pathlib.Path(__file__).parent, ROOT / "build/clients", ROOT / "tests/clients/recorded.jsonl"


def recorder(port, sent):
    """A proxy that keeps the bodies of requests."""
    class Proxy(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"] or 0))
            sent.append((self.path, body.decode()))
            upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            upstream.request("POST", self.path, body, {k: v for k, v in self.headers.items() if k.lower() not in ("host", "content-length")})
            response = upstream.getresponse()
            answer = response.read()
            self.send_response(response.status)
            self.send_header("content-type", response.headers["content-type"])
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_): pass
    proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    return proxy


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--record", action="store_true")
    a = parser.parse_args()
    python = FOLDER / "bin/python"
    if not python.exists(): subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
    print("installing the programs into", FOLDER.relative_to(ROOT), file=sys.stderr)
    subprocess.run([python, "-m", "pip", "install", "-q", "-r", HERE / "requirements.txt"], check=True)
    server = ServerProcess([VLCACHE, "serve", "-m", MODEL, "--port", "0"]).ready()
    sent, results, lines = [], {}, []
    proxy = recorder(server.port, sent)
    data = base64.b64encode(PAGE.read_bytes()).decode()
    try:
        for name in a.names:
            program = subprocess.Popen([python, HERE / "programs.py", name, f"http://127.0.0.1:{proxy.server_port}", PAGE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            for line in program.stdout:
                if not line.startswith('{"program"'): continue
                result = json.loads(line)
                results[name, result["case"]] = result
                for path, body in sent:
                    lines.append(json.dumps({"program": name, "path": path, "body": json.loads(body.replace(data, "@PAGE@"))}))
                sent.clear()
                print(f"{name:20} {result['case']:15} {'ok' if result['ok'] else 'FAILED  ' + result['detail']}", flush=True)
            if program.wait(): print(f"{name}: ended with {program.returncode}")
    finally:
        server.kill()
    print("\n| program | " + " | ".join(CASES) + " |\n|---" + "|---" * len(CASES) + "|")
    for name in a.names:
        cell = lambda case: "" if (name, case) not in results else "yes" if results[name, case]["ok"] else "**no**"
        print(f"| {name} | " + " | ".join(cell(case) for case in CASES) + " |")
    if a.record: RECORDED.write_text("\n".join(lines) + "\n")
    return 0 if results and all(r["ok"] for r in results.values()) else 1


if __name__ == "__main__": sys.exit(main())
