"""What has to be in the page before Gradio's own scripts: one of ours, and something to look at.

Gradio's read the browser's functions as they start, and `head` of `Blocks.launch` comes too late
for that: it is added when they are already running.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Serves = Callable[[Message, Receive, Send], Awaitable[None]]

HEAD = re.compile(rb"<head>")
BODY = re.compile(rb"<body[^>]*>")


class Early:
    """ASGI middleware: begins the head of the page at "/" with `script`, its body with `first`."""

    def __init__(self, app: Serves, script: str, first: str) -> None:
        self._app = app
        self._added = ((HEAD, f"<script>{script}</script>".encode()), (BODY, first.encode()))

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Every other answer passes as it is."""
        if scope["type"] != "http" or scope["path"] != "/" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        start: list[Message] = []
        body = bytearray()

        async def held(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.append(message)
                return
            body.extend(message.get("body", b""))
            if message.get("more_body"):
                return
            whole = bytes(body)
            for tag, added in self._added:
                if found := tag.search(whole):
                    whole = whole[: found.end()] + added + whole[found.end() :]
            others = [pair for pair in start[0]["headers"] if pair[0] != b"content-length"]
            length = (b"content-length", str(len(whole)).encode())
            await send({**start[0], "headers": [*others, length]})
            await send({"type": "http.response.body", "body": whole})

        await self._app(scope, receive, held)
