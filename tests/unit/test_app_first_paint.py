"""The first paint: every text of a run is escaped, and the page's head and body take it in."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from app.early import Early, Message
from app.first_paint import first_paint
from app.shipped import shipped
from app.views.snapshot import FIELDS
from app.views.wording import say

HOSTILE = "</bdi><script>alert(1)</script><img src=x onerror='alert(1)'>\"&"


def test_hostile_text_is_text() -> None:
    view = json.loads(json.dumps(shipped()[0]))
    lane = view["lanes"]["upper"]
    first = dict(zip(FIELDS, json.loads(lane["tokens"].split("\n")[0]), strict=True))
    lane["tokens"] = json.dumps(list((first | {"text": HOSTILE}).values()))
    lane["title"] = lane["caption"] = view["recorded"]["label"] = HOSTILE
    html = first_paint(view, "")
    assert html.count("<script>") == 1 and "<img" not in html
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 4


def test_the_end_of_the_text_is_called_so() -> None:
    view = json.loads(json.dumps(shipped()[0]))
    assert view["lanes"]["lower"]["ended"]
    lower = first_paint(view, "").split("lane-lower")[1]
    assert lower.count(f">{say('lane.end')}<") == 1


def test_an_empty_lane_has_no_cells() -> None:
    view = json.loads(json.dumps(shipped()[0]))
    view["lanes"]["lower"]["tokens"] = ""
    assert first_paint(view, "").split("lane-lower")[1].count("class='tok") == 0


def answered(body: bytes, path: str = "/") -> tuple[bytes, dict[bytes, bytes]]:
    """What a browser gets where the application answers `body` in two parts."""
    sent: list[Message] = []

    async def application(scope: Message, receive: Any, send: Any) -> None:
        headers = [(b"content-length", str(len(body)).encode()), (b"content-type", b"text/html")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body[:9], "more_body": True})
        await send({"type": "http.response.body", "body": body[9:]})

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "method": "GET"}
    answering = Early(application, "SCRIPT", "FIRST")(scope, None, send)  # type: ignore[arg-type]
    with suppress(StopIteration):  # nothing in it waits, so no event loop is needed
        answering.send(None)  # type: ignore[attr-defined]
    return b"".join(m.get("body", b"") for m in sent), dict(sent[0]["headers"])


def test_head_and_body_begin_with_what_is_ours() -> None:
    page = b"<html><head><title>x</title></head>\n<body\n style='a'>\n<p>y</p></body></html>"
    body, headers = answered(page)
    assert b"<head><script>SCRIPT</script><title>" in body
    assert b"style='a'>FIRST\n<p>" in body
    assert int(headers[b"content-length"]) == len(body)


def test_other_answers_pass_as_they_are() -> None:
    page = b"<html><head></head><body></body></html>"
    assert answered(page, "/file") == (page, answered(page, "/file")[1])
    assert answered(b'{"no": "page"}')[0] == b'{"no": "page"}'
