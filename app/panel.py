"""The panel of settings: which components stand in it. Layout only; ui.py wires them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from .asked import DEFAULTS
from .views.policies import ON_PAGE, policy_choices, policy_sentence
from .views.wording import say

HEADS, PREFILLS = ("river", "lens"), ("exit", "full")


@dataclass(frozen=True)
class Panel:
    """The components, by what they set; `named` are those that a run is asked with."""

    named: dict[str, Any]
    sentences: dict[str, gr.Markdown]
    resident: gr.Number
    apply: gr.Button
    said: gr.Markdown
    loaded: gr.Markdown


def settings_panel() -> Panel:
    """Everything but prompt, threshold and length."""
    named: dict[str, Any] = {}
    sentences = {}
    with gr.Accordion(say("settings.title"), open=False, elem_id="settings"):
        with gr.Row():
            for lane in ("upper", "lower"):
                with gr.Column(min_width=260):
                    named[lane] = gr.Dropdown(
                        policy_choices(),
                        value=DEFAULTS[lane],
                        label=say(f"settings.{lane}"),
                        elem_id=f"policy-{lane}",
                    )
                    sentences[lane] = gr.Markdown(
                        policy_sentence(DEFAULTS[lane]), elem_classes="quiet-text"
                    )
        with gr.Row():
            named["exit"] = _choice("exit", ON_PAGE)
            named["exit_layer"] = gr.Number(
                None,
                label=say("settings.exit_layer"),
                info=say("settings.exit_layer.info"),
                precision=0,
                min_width=150,
                elem_id="exit-layer",
            )
            named["head"] = _choice("head", HEADS)
            named["prefill"] = _choice("prefill", PREFILLS)
        with gr.Row():
            named |= _numbers()
            resident = gr.Number(
                None,
                label=say("settings.resident"),
                info=say("settings.resident.info", layers="-"),
                precision=0,
                min_width=150,
                elem_id="resident",
            )
            apply = gr.Button(say("settings.resident.apply"), elem_id="resident-apply", scale=0)
        said = gr.Markdown("", elem_id="resident-said", elem_classes="quiet-text")
        loaded = gr.Markdown("", elem_id="settings-loaded", elem_classes="quiet-text")
    return Panel(named, sentences, resident, apply, said, loaded)


def _choice(name: str, values: tuple[str, ...]) -> gr.Dropdown:
    own = (say("settings.own"), "")
    return gr.Dropdown(
        [own, *((say(f"setting.{name}.{value}"), value) for value in values)],
        value="",
        label=say(f"settings.{name}"),
        min_width=180,
        elem_id=f"setting-{name}",
    )


def _numbers() -> dict[str, Any]:
    temperature = gr.Number(
        DEFAULTS["temperature"],
        label=say("settings.temperature"),
        info=say("settings.temperature.info"),
        minimum=0,
        step=0.1,
        min_width=150,
        elem_id="temperature",
    )
    seed = gr.Number(
        DEFAULTS["seed"],
        label=say("settings.seed"),
        precision=0,
        min_width=150,
        elem_id="seed",
    )
    profile = gr.Checkbox(
        DEFAULTS["profile"],
        label=say("settings.profile"),
        info=say("settings.profile.info"),
        min_width=180,
        elem_id="profile",
    )
    return {"temperature": temperature, "seed": seed, "profile": profile}
