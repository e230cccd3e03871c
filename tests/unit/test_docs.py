"""What the documents say is what the code has: settings, policies, commands, versions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from river_core.settings import DecodeSettings, LoadSettings, QuantSpec

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SETTINGS = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")


def table(page: str, section: str) -> dict[str, str]:
    """First cell -> second cell of the table under `## section`, back quotes taken off."""
    _, found, text = page.partition(f"\n## {section}\n")
    assert found, f"no section {section}"
    rows = re.findall(r"^\| `([^`]+)` \| (.+?) \|", text.partition("\n## ")[0], re.MULTILINE)
    return {name: cell.strip("`") for name, cell in rows}


def defaults(settings: type) -> dict[str, str]:
    """Field name -> repr of its default; a nested settings class stands for its own defaults."""
    made = settings()
    values = {field.name: getattr(made, field.name) for field in fields(made)}
    return {
        name: f"{type(value).__name__}()" if is_dataclass(value) else repr(value)
        for name, value in values.items()
    }


@pytest.mark.parametrize("settings", [DecodeSettings, LoadSettings, QuantSpec])
def test_every_setting_is_documented_with_its_default(settings: type) -> None:
    assert table(SETTINGS, settings.__name__) == defaults(settings)


def test_every_policy_is_documented() -> None:
    from river_core.policies import POLICIES

    assert list(table(SETTINGS, "Policies")) == list(POLICIES)


def test_every_family_is_listed_with_what_was_run() -> None:
    from river_core.families import FAMILIES

    assert list(table(README, "Models that load")) == list(FAMILIES)


def test_table_reader_sees_what_is_missing_or_wrong() -> None:
    page = SETTINGS.replace("| `seed` | `0` |", "| `sed` | `1` |")
    found = table(page, "DecodeSettings")
    assert "seed" not in found
    assert found["sed"] == "1"
    assert "bits" not in found


def missing_commands(readme: str, commands: Iterable[str]) -> list[str]:
    return [c for c in commands if not re.search(rf"python -m river_core {c}(?![\w-])", readme)]


def test_every_command_is_in_the_readme() -> None:
    from river_core.__main__ import COMMANDS

    assert {"fetch", "generate"} <= set(COMMANDS)
    assert missing_commands(README, COMMANDS) == []


def test_command_check_sees_a_missing_command() -> None:
    readme = "python -m river_core fetch --json\n`python -m river_core sweep-all`"
    assert missing_commands(readme, ["fetch", "sweep"]) == ["sweep"]


def requirements(name: str) -> dict[str, Requirement]:
    """The requirement lines of a file, by name, without what it includes."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if re.match(r"[A-Za-z]", line)]
    return {canonicalize_name(requirement.name): requirement for requirement in found}


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_constraints_pin_every_requirement_within_its_range(name: str) -> None:
    pins = requirements("constraints.txt")
    for wanted, requirement in requirements(name).items():
        (pin,) = pins[wanted].specifier
        assert pin.operator == "=="
        assert requirement.specifier.contains(pin.version), wanted


def test_space_front_matter() -> None:
    front = dict(re.findall(r"^(\w+): (.+)$", README.split("---")[1], re.MULTILINE))
    assert README.startswith("---\n")
    (pin,) = requirements("constraints.txt")["gradio"].specifier
    assert front["sdk_version"] == pin.version
    assert front["sdk"] == "gradio"
    assert (ROOT / front["app_file"]).is_file()
    assert len(front["short_description"]) <= 60  # the hub's limit


def test_every_dependency_has_its_reason() -> None:
    reasons = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    names = re.findall(r"^\| ([a-z0-9_, -]+?)(?: \(.*?\))? \|", reasons, re.MULTILINE)
    given = {canonicalize_name(n) for row in names for n in row.split(", ")} - {"library"}
    assert given == {*requirements("requirements.txt"), *requirements("requirements-dev.txt")}


@pytest.mark.parametrize(
    "page",
    ["README.md", "docs/calibrate.md", "docs/evaluate.md", "docs/gpu.md", "docs/settings.md"],
)
def test_links_between_documents_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    missing = [t for t in targets if not ((ROOT / page).parent / t).exists()]
    assert missing == []
