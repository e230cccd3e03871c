"""Which matrices a budget raises, against every other choice; and the file of what was measured."""

from __future__ import annotations

import json
import random
from itertools import combinations, pairwise

import pytest

from river_core.errors import ModelUnavailable
from river_core.footprint import bits_per_weight
from river_core.mixed_bits import Matrix, Sensitivity, SensitivityFile, choose, mean_bits
from river_core.settings import QuantSpec

BITS = (4.5, 8.5)
BUDGETS = [4.5 + n / 16 for n in range(65)]
Case = tuple[dict[Matrix, float], dict[Matrix, int]]


def case(seed: int) -> Case:
    """Nine matrices of a few sizes, as a model has them, some KL alike."""
    draw = random.Random(seed)
    names = [(layer, name) for layer in (2, 3, 4) for name in ("qkv", "gate_up", "down")]
    kl = {m: draw.choice([0.0, 0.1, 0.25, draw.random()]) for m in names}
    return kl, {m: draw.choice([64, 96, 128, 512]) for m in names}


def best(kl: dict[Matrix, float], sizes: dict[Matrix, int], budget: float) -> float:
    """The most KL that any choice within the budget raises."""
    within = [
        sum(kl[m] for m in chosen)
        for count in range(len(sizes) + 1)
        for chosen in combinations(sizes, count)
        if mean_bits(chosen, sizes, BITS) <= budget
    ]
    return max(within)


@pytest.mark.parametrize("seed", range(8))
def test_no_other_choice_is_better_by_more_than_one_matrix(seed: int) -> None:
    """Greedy by ratio loses at most the first matrix that it passed over."""
    kl, sizes = case(seed)
    for budget in BUDGETS[::8]:
        chosen = choose(kl, sizes, budget, BITS)
        found, most = sum(kl[m] for m in chosen), best(kl, sizes, budget)
        over = [m for m in sorted(sizes, key=lambda m: (-kl[m] / sizes[m], m)) if m not in chosen]
        assert found <= most + 1e-12
        assert most <= found + (kl[over[0]] if over else 0.0) + 1e-12


@pytest.mark.parametrize("seed", range(8))
def test_of_matrices_of_one_size_it_is_the_best(seed: int) -> None:
    kl, sizes = case(seed)
    alike = dict.fromkeys(sizes, 64)
    for budget in BUDGETS[::8]:
        chosen = choose(kl, alike, budget, BITS)
        assert sum(kl[m] for m in chosen) == pytest.approx(best(kl, alike, budget))


@pytest.mark.parametrize("seed", range(30))
def test_never_over_the_budget_and_more_bits_never_raise_less(seed: int) -> None:
    kl, sizes = case(seed)
    gains = []
    for budget in BUDGETS:
        chosen = choose(kl, sizes, budget, BITS)
        assert mean_bits(chosen, sizes, BITS) <= budget + 1e-12
        gains.append(sum(kl[m] for m in chosen))
    assert all(a <= b + 1e-12 for a, b in pairwise(gains))
    assert gains[0] == 0 and gains[-1] == pytest.approx(sum(kl.values()))


def test_a_budget_that_fits_exactly_is_used_up() -> None:
    """4.6 - 4.5 is a little less than 0.1 in floating point."""
    sizes = {(n, "down"): 1000 for n in range(2, 42)}
    kl = {m: 1.0 / m[0] for m in sizes}
    assert choose(kl, sizes, 4.6, BITS) == {(2, "down")}
    assert choose(kl, sizes, 8.5, BITS) == sizes.keys()
    assert choose(kl, sizes, 4.5, BITS) == frozenset()


def test_without_a_model_the_budget_is_the_bound() -> None:
    mixed = QuantSpec(options={"budget": 4.6})
    assert [bits_per_weight(mixed, n) for n in (0, 16, 32)] == pytest.approx([4.1, 4.6, 5.1])


# --- the file


@pytest.fixture
def file(tmp_path) -> SensitivityFile:
    return SensitivityFile(tmp_path, "f" * 64, QuantSpec(4, 64, "gptq"), "text-0")


def test_what_is_saved_is_loaded(file: SensitivityFile, tmp_path) -> None:
    assert file.load() is None
    found = Sensitivity({(2, "qkv"): 0.1 + 0.2, (12, "gate_up"): 0.0}, 1.5)
    file.save(found)
    assert file.load() == found
    assert [path.name for path in tmp_path.iterdir()] == [file.path.name]
    for other in (
        SensitivityFile(tmp_path, "e" * 64, QuantSpec(4, 64, "gptq"), "text-0"),
        SensitivityFile(tmp_path, "f" * 64, QuantSpec(4, 64, "hqq"), "text-0"),
        SensitivityFile(tmp_path, "f" * 64, QuantSpec(4, 64, "gptq"), "text-1"),
    ):
        assert other.load() is None


@pytest.mark.parametrize(
    "change",
    [
        {"weights": "f" * 20},
        {"format": "sensitivity-0"},
        {"kl": {"2.qkv": "NaN"}},
        {"kl": {"qkv": 1.0}},
        {"kl": [1.0]},
        {"kl": None},
        {"seconds": None},
        None,
    ],
    ids=str,
)
def test_a_damaged_file_is_one_sentence(file: SensitivityFile, change) -> None:
    file.save(Sensitivity({(2, "qkv"): 0.1}, 1.5))
    held = json.loads(file.path.read_text(encoding="utf-8"))
    file.path.write_text("{" if change is None else json.dumps(held | change), encoding="utf-8")
    with pytest.raises(ModelUnavailable, match=r"is damaged .* measured again\.$") as caught:
        file.load()
    assert "\n" not in str(caught.value)
