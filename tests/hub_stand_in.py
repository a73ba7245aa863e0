"""A stand-in of the Hugging Face Hub on 127.0.0.1: what huggingface_hub asks for a model, and how the Hub answers.

Small files are answered by themselves; what the Hub keeps in its large storage (`.safetensors`, `.bin`, `.model`) is
redirected to another host, "localhost", with its size and SHA-256 in headers, as there.
"""

import collections
import contextlib
import hashlib
import http.server
import json
import re
import threading

SHA = "0123456789abcdef0123456789abcdef01234567"
OTHER = "fedcba9876543210fedcba9876543210fedcba98"
LARGE = (".safetensors", ".bin", ".model")


class HubStandIn(http.server.ThreadingHTTPServer):
    """Attributes: `models`, {"ORG/NAME": {revision: {file: bytes}}}; `renamed`, `gated` (from name to token) and
    `broken`, {"ORG/NAME": status}; `cut`, how often large files still break off; `asked`, all requests, "GET /path".
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.models, self.renamed, self.gated, self.broken = {}, {}, {}, {}
        self.cut, self.asked = 0, []

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, name, folder, sha=SHA):
        """Adds the files of a folder as the newest revision of a model."""
        files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
        self.models.setdefault(name, {}).update({"main": sha, sha: files})

    def fetched(self):
        """The names of the files whose content was asked for, with the number of times."""
        found = (re.search(r"^GET /(?:storage|[^/]+/[^/]+/resolve)/[^/]+/(.*)", line) for line in self.asked)
        return collections.Counter(match[1] for match in found if match)


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.asked.append(f"{self.command} {self.path}")
        path = self.path.partition("?")[0]
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)", path):
            self.describe(*match.groups())
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(*match.groups())
        elif match := re.fullmatch(r"/storage/([^/]+)/(.+)", path):
            self.send_large(*match.groups())
        else:
            self.refuse(404, "", "Not found")

    do_HEAD = do_GET

    def describe(self, name, what, revision):
        files, sha = self.files_of(name, revision)
        if files is None:
            return
        if what == "revision":
            siblings = [{"rfilename": file} for file in files]
            about = {"_id": "0", "id": name, "modelId": name, "sha": sha, "private": False, "siblings": siblings,
                     "gated": "manual" if name in self.server.gated else False, "tags": [], "downloads": 0}  # fmt: skip
            self.send(200, json.dumps(about).encode(), {"Content-Type": "application/json"})
            return
        entries = []
        for file, content in files.items():
            entry = {"type": "file", "oid": hashlib.sha1(content).hexdigest(), "size": len(content), "path": file}
            if file.endswith(LARGE):
                entry["lfs"] = {"oid": sha256(content), "size": len(content), "pointerSize": 134}
            entries.append(entry)
        self.send(200, json.dumps(entries).encode(), {"Content-Type": "application/json"})

    def resolve(self, name, revision, file):
        files, sha = self.files_of(name, revision)
        if files is None:
            return
        if name in self.server.gated:
            token = self.server.gated[name]
            if self.headers.get("Authorization") != f"Bearer {token}":
                status = 403 if self.headers.get("Authorization") else 401
                self.refuse(status, "GatedRepo", f"Access to model {name} is restricted.")
                return
        if file not in files:
            self.refuse(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": sha})
            return
        content, about = files[file], {"X-Repo-Commit": sha}
        if not file.endswith(LARGE):
            self.send(200, content, {**about, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'})
            return
        linked = {"X-Linked-Size": str(len(content)), "X-Linked-ETag": f'"{sha256(content)}"'}
        location = f"http://localhost:{self.server.server_port}/storage/{name.replace('/', '--')}@{sha}/{file}"
        self.send(302, b"", {**about, **linked, "Location": location})

    def send_large(self, place, file):
        name, sha = place.replace("--", "/").split("@")
        content = self.server.models[name][sha][file]
        first = int((re.match(r"bytes=(\d+)-", self.headers.get("Range", "")) or [0, 0])[1])
        headers = {"Content-Range": f"bytes {first}-{len(content) - 1}/{len(content)}"} if first else {}
        rest = content[first:]
        if self.command == "GET" and self.server.cut:
            self.server.cut -= 1
            self.send(206 if first else 200, rest, headers, sent=len(rest) // 2 if not first else 0)
            self.close_connection = True
            return
        self.send(206 if first else 200, rest, headers)

    def files_of(self, name, revision):
        """Returns the files of a revision and its commit; refuses, or leads elsewhere, where there is none."""
        hub = self.server
        if name in hub.renamed:
            self.send(307, b"", {"Location": self.path.replace(name, hub.renamed[name])})
        elif name in hub.broken:
            self.refuse(hub.broken[name], "", "Internal Error - We're working hard to fix this as soon as possible!")
        elif name not in hub.models and not self.headers.get("Authorization"):
            self.refuse(401, "", "Invalid username or password.")  # the Hub does not say which are private
        elif name not in hub.models:
            self.refuse(404, "RepoNotFound", "Repository not found")
        elif revision not in hub.models[name]:
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            sha = hub.models[name]["main"] if revision == "main" else revision
            return hub.models[name][sha], sha
        return None, ""

    def refuse(self, status, code, message, headers=()):
        about = {"X-Error-Message": message, **dict(headers), **({"X-Error-Code": code} if code else {})}
        self.send(status, json.dumps({"error": message}).encode(), about)

    def send(self, status, content, headers, sent=None):
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content if sent is None else content[:sent])
            self.wfile.flush()

    def log_message(self, *arguments):
        pass


def sha256(content):
    return hashlib.sha256(content).hexdigest()


@contextlib.contextmanager
def hub_stand_in():
    """Gives a Hub without models."""
    hub = HubStandIn()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


def environment(hub, cache, **others):
    """Returns what huggingface_hub is to see of the environment."""
    return {"HF_ENDPOINT": hub.address, "HF_HOME": str(cache), "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1", **others}  # fmt: skip
