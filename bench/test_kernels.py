"""The figures that bench.kernels makes of rows."""

from __future__ import annotations

from bench.kernels import GOALS, Figures, Row, missed

KEEPS = ("0.5", "0.1", "0.01")
CONTEXT = {f"bits{n}": "2.5" for n in (3, 5, 7, 15, 31)}
MASKED = ("compact", "compact_and_count", "expand", "expand_divide")


def rows(instructions: tuple[str, ...]) -> dict[tuple[str, str], Row]:
    """memcpy at 10 GB/s, torch at 1, variants at 8, 9 and so on."""
    found = {("memcpy", "memcpy"): Row(10.0, 10.0)}
    operations = [f"{name} {keep}" for name in MASKED for keep in KEEPS]
    operations += [f"{name} {n}" for name in ("encode", "decode") for n in (3, 5, 7, 15, 31)]
    operations.append("sum of 4")
    for operation in operations:
        for speed, who in enumerate(instructions, 8):
            found[operation, who] = Row(80.0 / speed, float(speed))
    found["sum of 4", "2 threads"] = Row(5.0, 16.0)
    for operation, who in (
        ("compact 0.5", "torch.masked_select"),
        ("compact 0.1", "torch.masked_select"),
        ("expand 0.5", "torch.masked_scatter"),
    ):
        found[operation, who] = Row(80.0, 1.0)
    return found


def test_figures_of_an_instruction_set_are_those_of_its_chosen_variant() -> None:
    variants = ("avx2", "avx512-register", "avx512-memory")
    figures = Figures(rows(variants), CONTEXT | {"best_variant": "avx512-register"}).all()
    assert figures["compact_vs_memcpy_avx2_0.5"] == 0.8
    assert figures["compact_vs_memcpy_avx512_0.5"] == 0.9
    assert figures["compact_vs_memcpy_avx512_memory_0.5"] == 1.0
    assert figures["compact_vs_torch_masked_select"] == 9.0
    assert figures["encode7_gb_per_s"] == 9.0
    assert figures["bits7"] == 2.5
    assert figures["sum4_two_threads_vs_one"] == 16.0 / 9.0


def test_what_the_cpu_lacks_is_null_and_misses_no_goal() -> None:
    figures = Figures(rows(("avx2",)), CONTEXT | {"best_variant": "avx2"}).all()
    assert figures["compact_vs_memcpy_avx512_0.5"] is None
    assert figures["decode7_gb_per_s"] == 8.0
    assert missed(figures) == [
        key for key in GOALS if "memcpy_avx2" in key or key == "compact_vs_torch_masked_select"
    ]


def test_every_goal_has_a_figure() -> None:
    assert set(GOALS) <= set(Figures(rows(("avx2",)), CONTEXT | {"best_variant": "avx2"}).all())
