"""The one model: loading it, what the page says meanwhile, how many of its layers are resident.

Used on the worker thread, but for `card` and `closing`, which are plain values.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from river_core.errors import RiverError

from .card import model_card
from .views.english import Refused, known, marked
from .views.numbers import percent
from .views.run import ModelCard
from .views.wording import say


class Holder:
    """`name` by `engine.load` with `settings`; `card` is what is known of it now."""

    def __init__(self, engine: Any, name: str, settings: Mapping[str, Any]) -> None:
        self._engine, self._name, self._settings = engine, name, settings
        self.model: Any = None
        self.card = ModelCard("loading", say("model.loading"), name)
        self.closing = False
        self._instead = ""

    def load(self) -> None:
        """Load the model that was asked for, else the default one, which the page then tells.

        Where that fails too, the page says so, and the next run tries again.
        """
        if self.model is not None:
            return  # a run that came first has loaded it
        from river_core.sources import DEFAULT  # it brings torch, which the page does not wait for

        reason = ""
        for name in dict.fromkeys((self._name, DEFAULT)):
            self.card = ModelCard("loading", say("model.loading"), name)
            try:
                model = self._engine.load(name, progress=self._progress, **self._settings)
            except RiverError as error:
                reason = reason or _reason(error)
                continue
            self._instead = say("model.instead", reason=reason) if reason else ""
            self.model, self.card = model, model_card(model, self._instead)
            return
        self.card = ModelCard("failed", say("model.failed", reason=reason), self._name)

    def loaded(self, future: Future[None]) -> None:
        """Tell the page of a fault that `_load` did not foresee."""
        if not future.cancelled() and (fault := future.exception()) is not None:
            traceback.print_exception(fault)
            self.card = ModelCard("failed", say("error.unexpected"), self._name)

    def _progress(self, step: str, fraction: float | None) -> None:
        if self.closing:
            raise SystemExit
        if self.model is not None:
            return  # the model is there; a run has it build the river's first layers
        step = known(step)
        if fraction is not None:
            step = say("model.loading_share", step=step, share=percent(fraction))
        message = say("model.loading_step", step=step)
        if message != self.card.message:
            self.card = ModelCard("loading", message, self.card.name)

    def ready(self) -> Any:
        """The model, loaded where it is not there yet. Raises RiverError."""
        if self.model is None:
            self.load()
        if self.model is None:
            raise Refused(self.card.message)
        return self.model

    def set_resident(self, layers: int | str) -> None:
        """Keep that many backbone layers. Raises RiverError."""
        model = self.ready()
        model.set_resident(layers)
        self.card = model_card(model, self._instead)


def _reason(error: RiverError) -> str:
    """What stands behind the page's own "because"."""
    return str(error) if isinstance(error, Refused) else marked(str(error))
