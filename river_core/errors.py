"""The exception tree: everything that a caller can cause is a RiverError.

A message is one sentence that says what was wrong and what to do about it; the command line and
the app print it as it stands, without a traceback.
"""

from __future__ import annotations


class RiverError(Exception):
    """Base of every error that a caller of River can cause."""


class SettingsError(RiverError, ValueError):
    """A setting, prompt or option that is unknown, out of range or unusable here."""


class UnsupportedModel(RiverError):
    """A model whose architecture, layers or file format River does not run."""


class ModelUnavailable(RiverError):
    """A model that is known by name but cannot be had: missing, gated, offline, damaged."""


class KernelUnavailable(RiverError):
    """A kernel that was asked for by name and cannot run on this machine."""


class CacheFull(RiverError):
    """Prompt plus new tokens exceed the capacity of the KV cache; nothing was computed."""


class RecordError(RiverError, ValueError):
    """A run record that is not one of ours, damaged, or lacks what is asked of it."""


class Cancelled(Exception):
    """Internal: `Control.cancel()` was seen inside a pass. Never reaches a caller."""
