"""Terminal output: the colour bins of app.md, and no control code from a token."""

from __future__ import annotations

import pytest

from river_core.cli_terminal import ProgressLine, bin_of, harmless, painted


@pytest.mark.parametrize(
    ("exit_layer", "layers", "expected"),
    [(1, 30, 0), (5, 30, 0), (6, 30, 1), (15, 30, 2), (25, 30, 4), (26, 30, 5), (30, 30, 5),
     (0, 30, 0), (1, 4, 1), (4, 4, 5), (16, 16, 5)],
)  # fmt: skip
def test_bins_by_fraction_of_depth(exit_layer, layers, expected):
    assert bin_of(exit_layer, layers) == expected


def test_colours_end_before_a_line_does():
    assert painted("a\nb", 30, 30).split("\n")[0].endswith("\x1b[0m")
    assert "\x1b[" not in painted("\n", 1, 30)


def test_escape_codes_of_a_token_do_nothing():
    assert harmless("a\x1b[31mb\x07\u202ec\td\n") == "a\ufffd[31mb\ufffd\ufffdc\td\n"


def test_progress_off_a_terminal_is_lines_with_pauses(capsys):
    now = [0.0]
    progress = ProgressLine(clock=lambda: now[0])
    for second in (0.5, 2.9, 3.1, 3.2, 6.0, 6.2, 9.3):
        now[0] = second
        progress(f"at {second}", second / 10)
    progress.done()
    assert capsys.readouterr().err == "at 3.1 (31%)\nat 6.2 (62%)\nat 9.3 (93%)\n"
