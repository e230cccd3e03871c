"""What programs may call: three functions, typed and described; all else on the page is private."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import gradio as gr
import pytest

from app.endpoints import Endpoints
from app.ui import build
from tests.ui.synthetic import StubSource

NAMES = ("/generate", "/compare", "/record")


def test_only_three_functions_are_public_and_each_is_described() -> None:
    page = build(StubSource())
    found = page.get_api_info()
    assert tuple(found["named_endpoints"]) == NAMES and not found["unnamed_endpoints"]
    for endpoint in found["named_endpoints"].values():
        assert len(endpoint["description"]) > 40
        types = [parameter["type"] for parameter in endpoint["parameters"]]
        assert all("type" in kind or "oneOf" in kind for kind in types)


def test_what_is_wrong_is_told_in_a_sentence() -> None:
    public = Endpoints(StubSource())
    with pytest.raises(gr.Error, match="prompt is empty; type at least one word"):
        public.generate("")
    assert public.compare("hi", "kv-mask")["upper"] == "kv-mask"
    assert public.record("r1") == {"run_id": "r1", "lane": "upper"}


def test_without_its_package_mcp_is_refused_with_the_command_that_helps() -> None:
    code = "import sys; sys.modules['mcp'] = None; sys.argv = ['app.py', '--mcp']\n"
    code += "import runpy; runpy.run_path('app.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.startswith("river: --mcp needs more: pip install") and (
        "Traceback" not in done.stderr
    )


def test_mcp_clients_find_the_same_three() -> None:
    pytest.importorskip("mcp", reason="the extra mcp is not installed")
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    async def ask(url: str) -> tuple[list[str], Any]:
        async with (
            streamablehttp_client(url) as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            names = [tool.name for tool in (await session.list_tools()).tools]
            return names, await session.call_tool("generate", {"prompt": "hi", "seed": 3})

    page = build(StubSource())
    _, url, _ = page.launch(prevent_thread_lock=True, quiet=True, mcp_server=True, ssr_mode=False)
    try:
        names, answer = asyncio.run(ask(f"{url.rstrip('/')}/gradio_api/mcp/"))
    finally:
        page.close()
    assert [f"/{name}" for name in names] == list(NAMES)
    assert "'seed': 3" in answer.content[0].text and not answer.isError
