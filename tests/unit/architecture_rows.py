"""The tree's rows and who may import which library, as data (design.md)."""

from __future__ import annotations

from dataclasses import dataclass

Rows = tuple[tuple[str, ...], ...]

# A file imports only from a lower row, or from a file named earlier in its own row. A pattern
# stands for files that do not import each other (one back end each, one command each).
_CORE: Rows = (
    ("errors.py", "giving_up.py", "version.py", "cache_paths.py", "devices.py", "machine.py"),
    ("settings.py", "records.py"),
    ("cache.py", "sampling.py", "metrics.py", "saving.py", "text.py"),
    (
        "kernels/base.py",
        *("kernels/native_compiler.py", "kernels/native_library.py"),
        "kernels/pages.py",
        *("kernels/gemv_plan.py", "kernels/triton_finish.py"),
        "kernels/*.py",
        *("kernels/triton_linear.py", "kernels/micro.py"),
        *("kernels/triton_loading.py", "kernels/triton_step.py"),
        "kernels/choose.py",
        "kernels/__init__.py",
    ),
    ("layer.py", "block.py"),
    (
        *("shapes.py", "footprint.py"),
        *(
            *("group_fit.py", "second_order.py", "activation_aware.py"),
            "quantize.py",
            "weights.py",
            "calibration_store.py",
            "residency.py",
            "model.py",
        ),
        *("plan.py", "random_model.py", "placement.py", "input_moments.py"),
        *("mixed_bits.py", "sensitivity.py", "paper_table6.py"),
    ),
    (
        *("tensor_names.py", "families.py", "checkpoint.py", "hub_folder.py"),
        *("model_store.py", "folders.py"),
        *("gguf_architectures.py", "gguf_reader.py", "gguf_metadata.py"),
        *("gguf_tokenizers.py", "gguf_files.py"),
        *("hub_files.py", "pip_wheels.py", "packaged.py", "sources.py"),
        *("awq_checkpoint.py", "banks.py", "mixed_river.py"),
        *("loading.py", "inventory.py"),
        *("exits.py", "fills.py", "policies.py", "planning.py", "prompts.py"),
    ),
    (
        *("execution/base.py", "execution/native.py", "execution/eager.py", "execution/fused.py"),
        *("execution/split.py",),
        *("execution/device.py", "execution/fake_device.py", "execution/host_poll.py"),
        "execution/cuda_device.py",
        *("execution/pieces.py", "execution/kernel_attention.py", "execution/kernel_pieces.py"),
        *("execution/graph_store.py", "execution/graphs.py"),
        "execution/__init__.py",
    ),
    ("control.py", "thresholds.py", "recorder.py", "trace.py", "passes.py", "decode.py"),
    (
        *("figures.py", "gguf_export.py", "peers.py", "llama_cpp_peer.py"),
        *("compare.py", "sweep.py", "calibrate.py", "bandwidth.py"),
        *("kv_error.py", "safe_exits.py"),
        *("bench_report.py", "bench.py", "contenders.py", "bench_run.py"),
        *("gpu_bench.py", "gpu_*_items.py", "gpu_items.py", "gpu_report.py", "evaluate.py"),
        *("resumable.py", "cells.py", "cell_rows.py", "grid.py", "strategies.py"),
        *("cache_study.py",),
        *("sandbox_child.py", "sandbox.py", "tasks/local.py", "tasks/__init__.py"),
        *("eval_report.py", "harness.py", "paper_tables.py", "paper_table4.py", "eval_parts.py"),
        *("back_end_speed.py", "back_ends.py"),
    ),
    (
        *("cli_terminal.py", "cli_run.py", "cli_study.py", "cli_*.py"),
        *("__init__.py", "__main__.py"),
    ),
)
CORE_ROWS: Rows = tuple(tuple(f"river_core/{name}" for name in row) for row in _CORE)
_APP: Rows = (
    (
        *("__init__.py", "views/*.py", "views/english.py", "views/display.py"),
        *("views/policies.py", "views/run.py", "views/readouts.py"),
        *("views/preview.py", "views/charts.py", "views/ledger.py", "views/sentences.py"),
        *("views/saved.py", "views/comparison.py", "views/measured.py"),
        *("views/snapshot.py", "views/__init__.py"),
    ),
    (
        *("card.py", "holder.py", "asked.py", "space.py", "pace.py", "decoding.py", "job.py"),
        *("command.py", "recipe.py", "replay_check.py", "recorded.py", "shipped.py"),
        *("task.py", "measuring.py", "safe.py", "desk.py", "studies.py", "runner.py"),
    ),
    (
        *("early.py", "first_paint.py", "parts.py", "panel.py", "endpoints.py"),
        *("analysis.py", "theme.py"),
        *("export.py", "files.py", "ui.py"),
    ),
)
APP_ROWS: Rows = (*(tuple(f"app/{name}" for name in row) for row in _APP), ("app.py",))


@dataclass(frozen=True)
class Owner:
    """Who may import a library, and where only inside a function (`lazy`)."""

    files: tuple[str, ...]
    lazy: tuple[str, ...] = ()


_LAYOUT = ("panel", "endpoints", "analysis", "files", "ui", "theme")
OWNERS = {
    "transformers": Owner(
        ("river_core/families.py", "river_core/hub_folder.py", "river_core/peers.py")
    ),
    "hqq": Owner(("river_core/quantize.py",)),
    "gradio": Owner((*(f"app/{name}.py" for name in _LAYOUT), "app.py")),
    "plotly": Owner(("river_core/figures.py", "app/views/*.py"), lazy=("river_core/*.py",)),
    "pandas": Owner(
        ("river_core/records.py", "river_core/sweep.py", "river_core/figures.py"),
        lazy=("river_core/*.py",),
    ),
    "torch": Owner(("river_core/*.py", "app/runner.py")),
    "triton": Owner(("river_core/kernels/triton_*.py",)),
    "lm_eval": Owner(("river_core/harness.py",)),
    "llama_cpp": Owner(("river_core/llama_cpp_peer.py",), lazy=("river_core/*.py",)),
}
