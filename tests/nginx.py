"""nginx in front of a server, as Debian's package runs it with nothing but `proxy_pass`, for tests and tools."""
import pathlib
import shutil
import subprocess
import tempfile

from server import comes_to_listen, free_port

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")

# The settings of Debian's /etc/nginx/nginx.conf that concern replies; the rest keeps a process of a test to itself.
CONFIG = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 768; }}
http {{
  sendfile on; tcp_nopush on; gzip on; access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  {server}
}}
"""
PLAIN = "server { listen 80; location / { proxy_pass http://127.0.0.1:8080; } }"


class Nginx:
    """Listens on `port` until end(), with the block `server`, whose 80 stands for that port and 8080 for `to`."""

    def __init__(self, to, server=PLAIN):
        self.files = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.files.name)
        self.port = free_port()
        server = server.replace("listen 80;", f"listen 127.0.0.1:{self.port};").replace("127.0.0.1:8080", f"127.0.0.1:{to}")
        (self.folder / "nginx.conf").write_text(CONFIG.format(folder=self.folder, server=server))
        self.process = subprocess.Popen([NGINX, "-p", self.folder, "-e", self.folder / "error.log", "-c", self.folder / "nginx.conf"], stderr=subprocess.DEVNULL)
        if not comes_to_listen(self.port):
            raise RuntimeError("nginx does not listen: " + self.errors())

    def errors(self):
        return (self.folder / "error.log").read_text()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.files.cleanup()
