"""One script that has to run before Gradio's own, which read the browser's functions as they start.

`head` of `Blocks.launch` comes too late for it: Gradio's page adds that when it is already running.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Serves = Callable[[Message, Receive, Send], Awaitable[None]]

BEGIN = b"<head>"


class Early:
    """ASGI middleware: puts `script` at the beginning of the head of the page at "/"."""

    def __init__(self, app: Serves, script: str) -> None:
        self._app = app
        self._added = BEGIN + f"<script>{script}</script>".encode()

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
            whole = bytes(body).replace(BEGIN, self._added, 1)
            others = [pair for pair in start[0]["headers"] if pair[0] != b"content-length"]
            length = (b"content-length", str(len(whole)).encode())
            await send({**start[0], "headers": [*others, length]})
            await send({"type": "http.response.body", "body": whole})

        await self._app(scope, receive, held)
