"""A Hugging Face hub on this computer: a few repositories, and each of the ways to refuse."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import unquote, urlparse

SHA = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model.safetensors": b"weights" * 1000,
    "pytorch_model.bin": b"pickle",
    "modeling_own.py": b"import os",
    "onnx/config.json": b"{}",
}
# repository -> (status, X-Error-Code, X-Error-Message) of whatever is asked of it
REFUSALS = {
    "some/missing": (404, "RepoNotFound", "Repository not found"),
    "some/private": (401, "RepoNotFound", "Repository not found"),
    "some/badtoken": (401, "", "Invalid credentials in Authorization header"),
    "some/forbidden": (403, "", "no permission"),
    "some/disabled": (403, "", "Access to this resource is disabled."),
    "some/broken": (503, "", "down"),
}

# name -> words of the sentence that a person reads instead
SENTENCES = {
    "some/gated": "is gated: accept its terms",
    "some/missing": "was not found",
    "some/private": "log in with 'hf auth login' if it is private",
    "some/badtoken": "does not accept the access token",
    "some/forbidden": "token may not read",
    "some/disabled": "was disabled",
    "some/broken": "error 503",
    "some/page": "does not answer",
    "some/pickles": "no config.json with safetensors",
    "some/model@nope": "no revision 'nope'",
    "some--x/y..z": "was not found",
}


class _Handler(BaseHTTPRequestHandler):
    asked: ClassVar[list[str]]

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlparse(self.path).path).removeprefix("/api/models/").lstrip("/")
        type(self).asked.append(path)
        repo, rest = "/".join(path.split("/")[:2]), path.split("/")[2:]
        if repo in REFUSALS:
            self._send(b"", *REFUSALS[repo])
        elif repo == "some/slow":
            time.sleep(5)
        elif repo == "some/page":
            self._send(b"<html>log in to this network</html>")
        elif rest[:1] == ["resolve"]:
            if repo == "some/gated":
                self._send(b"", 403, "GatedRepo")
            else:
                name = "/".join(rest[2:])
                self._send(FILES[name], etag=_etag(name))
        elif rest[:1] == ["revision"] and rest[1:] not in (["main"], [SHA]):
            self._send(b"", 404, "RevisionNotFound")
        else:
            self._describe(repo, rest)

    def _describe(self, repo: str, rest: list[str]) -> None:
        names = [n for n in FILES if repo != "some/pickles" or not n.endswith(".safetensors")]
        tree = [{"type": "file", "path": n, "size": len(FILES[n]), "oid": _etag(n)} for n in names]
        siblings = [{"rfilename": n, "size": len(FILES[n])} for n in names]
        config = {"model_type": "gpt2" if repo == "some/gpt2" else "llama"}
        info = {"id": repo, "sha": SHA, "siblings": siblings, "config": config}
        self._send(json.dumps(tree if rest[:1] == ["tree"] else info).encode())

    def _send(
        self, body: bytes, status: int = 200, code: str = "", message: str = "", etag: str = ""
    ) -> None:
        self.send_response(status)
        headers = {"X-Error-Code": code, "X-Error-Message": message, "X-Repo-Commit": SHA}
        headers["ETag"] = f'"{etag}"' if etag else ""
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _etag(name: str) -> str:
    return hashlib.sha1(FILES[name]).hexdigest()


@contextmanager
def fake_hub() -> Iterator[tuple[str, list[str]]]:
    """Serve the fake hub; yields its address and the list of paths asked for so far."""

    class Handler(_Handler):
        asked: ClassVar[list[str]] = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", Handler.asked
    finally:
        server.shutdown()
        server.server_close()
