"""The tables of README.md and docs/*.md, as functions of what bench/results has.

Pure. A block says which command measures it where that has not been done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench import demo_report
from bench.exchange_layout import PAYLOAD_SHARE, parse_rate
from bench.results import MEASUREMENTS
from bench.spread import bucket_text

Results = Mapping[str, Mapping[str, Any]]
Rows = dict[str, dict[str, Any]]
RATES = {"100mbit": "100 Mbps", "500mbit": "500 Mbps", "1gbit": "1 Gbps"}
DEMOS = {"demo-digits": "scikit-learn's digits", "demo-cifar10": "CIFAR-10"}
PLOTS = ("demo-cifar10", "demo-digits")  # README shows the first that there is.
ONE_BUCKET, DEFAULT_BUCKETS = "ddp-gloo", "ddp-default"
TITLES = {
    ONE_BUCKET: "DDP over Gloo, one bucket",
    DEFAULT_BUCKETS: "DDP over Gloo, torch's default buckets",
    "fp16": "DDP, fp16 hook",
    "powersgd1": "PowerSGD of rank 1",
    "powersgd4": "PowerSGD of rank 4",
    "topk0.1": "top-k 0.1",
    "topk0.01": "top-k 0.01",
    "full": "FULL fp32",
    "compacted-0.5": "COMPACTED fp32, keep 0.5",
    "levels15-0.5": "TERNARY 15 levels, keep 0.5",
    "levels7-0.5": "TERNARY 7 levels, keep 0.5",
    "levels7-0.2": "TERNARY 7 levels, keep 0.2",
}
HEADLINE_ROWS = {"100mbit": ("full", "compacted-0.5", "levels7-0.5"), "1gbit": ("levels7-0.5",)}
HEADLINE = (*DEMOS, *(f"exchange-{rate}" for rate in HEADLINE_ROWS))
NEEDS_DATA = {m.name for m in MEASUREMENTS if m.needs_data}


class NotMeasuredError(LookupError):
    """Names what is missing."""


def figures(results: Results, name: str) -> Any:
    if name not in results:
        raise NotMeasuredError(name)
    return results[name]["figures"]


def rows_of(results: Results, rate: str) -> Rows:
    return {row["name"]: row for row in figures(results, f"exchange-{rate}")["rows"]}


def short(value: float) -> str:
    """Three digits that count, as a table needs."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")


def with_spread(spread: Mapping[str, float]) -> str:
    if spread["n"] == 1:
        return short(spread["median"])
    return f"{short(spread['median'])} ({short(spread['min'])} to {short(spread['max'])})"


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    above, *rows = (f"| {' | '.join(line)} |" for line in (header, *lines))
    return "\n".join([above, "|---" * len(header) + "|", *rows])


def headline(results: Results) -> str:
    """README's: what is faster, by how much, and against which plain DDP."""
    lines = []
    measured_of(results)
    for name in [name for name in PLOTS if name in results][:1]:
        demo = figures(results, name)
        seconds, accuracy = ([demo[run][key] for run in ("ddp", "pactrain")]
                             for key in ("seconds", "accuracy"))  # fmt: skip
        lines.append([f"{demo['steps']} steps, {DEMOS[name]}", short(seconds[0]), "-",
                      short(seconds[1]), f"{short(demo['speedup'])} x, {most(demo)}; accuracy"
                      f" {accuracy[0]:.4f}, {accuracy[1]:.4f}"])  # fmt: skip
    for rate, names in HEADLINE_ROWS.items():
        if f"exchange-{rate}" not in results:
            continue
        rows = rows_of(results, rate)
        default, one = rows[DEFAULT_BUCKETS]["seconds"], rows[ONE_BUCKET]["seconds"]
        for name in names:
            ours = rows[name]["seconds"]
            title = TITLES[name].removesuffix(", keep 0.5")  # The text below says it.
            lines.append([f"{title}, {RATES[rate]}", short(default), short(one),
                          short(ours), f"{short(min(default, one) / ours)} x"])  # fmt: skip
    return table(["seconds", "DDP, torch's buckets", "DDP, one bucket", "PacTrain", ""], lines)


def measured_of(results: Results) -> list[Mapping[str, Any]]:
    """What there is of the headline's."""
    found = [results[name] for name in HEADLINE if name in results]
    if not found:
        raise NotMeasuredError(HEADLINE[0])
    return found


def most(demo: Mapping[str, Any]) -> str:
    return f"at most {short(demo['speedup_ceiling'])} x"


def plot(results: Results) -> str:
    """The picture that `make figures` copies."""
    name = next((name for name in PLOTS if name in results), PLOTS[0])
    seconds = figures(results, name)["ddp"]["seconds"]
    return (f"![Test accuracy over {short(seconds)} seconds of plain DDP and of PacTrain on "
            f"{DEMOS[name]}, and MB on each link](docs/images/demo.png)")  # fmt: skip


def demo_buckets(results: Results) -> str:
    return bucket_text(figures(results, "demo-digits")["ddp"]["bucket_bytes"])


def demo_excerpt(results: Results) -> str:
    """The lines of README of those that `make demo` prints at its end."""
    wanted = ("plain DDP ", "seconds (", "final test", "bytes per", "goals:", "met: ")
    left_out = "  ..."
    lines: list[str] = []
    for line in demo_report.table(figures(results, "demo-digits")):
        if any(word in line for word in wanted):
            lines.append(line)
        elif lines[-1] != left_out:
            lines.append(left_out)
    return "\n".join(["```", *lines, left_out, "```"])  # Names of files and JSON.


def demos(results: Results) -> str:
    """Both data sets side by side."""
    lines: list[list[str]] = []
    both = [figures(results, name) for name in DEMOS]
    for title, key, form in (
        ("seconds of training, one run", "seconds", ".1f"),
        ("seconds to an accuracy that both reach", "seconds_to_accuracy", ".1f"),
        ("test accuracy at the end", "accuracy", ".4f"),
    ):
        cells = [f"{demo[run][key]:{form}}" for demo in both for run in ("ddp", "pactrain")]
        lines.append([title, *cells])
    steps = [with_spread(demo[run]["seconds_per_step"])
             for demo in both for run in ("ddp", "pactrain")]  # fmt: skip
    lines.append(["seconds of a step, of that run", *steps])
    lines.append(["times as fast", *[cell for demo in both for cell in
                                     ("1", f"{demo['speedup']:.2f} x, {most(demo)}")]])  # fmt: skip
    lines.append(["COMPACTED, TERNARY from step", *[
        cell for demo in both
        for cell in ("-", f"{demo['first_compacted_step']}, {demo['first_ternary_step']}")
    ]])  # fmt: skip
    header = [f"{who}, {title}" for title in DEMOS.values() for who in ("plain DDP", "PacTrain")]
    return table(["", *header], lines)


def exchange(results: Results) -> str:
    at = {rate: rows_of(results, rate) for rate in RATES}
    slowest = next(iter(RATES))
    lines = []
    for name, title in TITLES.items():
        rows = [at[rate][name] for rate in RATES]
        sent = [short(max(row["link_bytes_per_element"])) for row in rows]
        lines.append([
            title,
            *[with_spread(row["spread"]) for row in rows],
            short(at[slowest][name]["bound_seconds"]),
            sent[0] if len(set(sent)) == 1 else ", ".join(sent),
            ", ".join(f"{row['link_share']:.2f}" for row in rows),
            ", ".join(f"{row['cpu_seconds']:.2f}" for row in rows),
        ])  # fmt: skip
    header = ["seconds per step", *RATES.values(), f"bound at {RATES[slowest]}",
              "bytes per element and direction", "link share", "CPU seconds"]  # fmt: skip
    return table(header, lines)


def exchange_buckets(results: Results) -> str:
    rows = rows_of(results, "100mbit")
    default, one = (bucket_text(rows[n]["bucket_bytes"]) for n in (DEFAULT_BUCKETS, ONE_BUCKET))
    return f"{default} by default, {one} as one"


def stolen(results: Results) -> str:
    """The most of the processors that others had during rows of ours."""
    shares = []
    for rate in RATES:
        result = figures(results, f"exchange-{rate}")
        shares.append(max(row["stolen_seconds"] / (row["seconds"] * result["processors"])
                          for row in result["rows"]))  # fmt: skip
    return ", ".join(f"{share:.2f}" for share in shares)


def tcp(results: Results) -> str:
    shares = [figures(results, f"exchange-{rate}")["raw_stream_share"] for rate in RATES]
    return ", ".join(f"{share:.2f}" for share in shares)


def link_bytes(results: Results) -> str:
    lines = [[row["link"], f"{row['bytes']:,}", f"{row['bytes_per_element']:.3f}"]
             for row in figures(results, "bytes")["rows"]]  # fmt: skip
    return table(["link", "bytes", "per element and step"], lines)


def tls(results: Results) -> str:
    found = figures(results, "tls")["spread"]
    cost = found["cost"]
    lines = [
        ["seconds per step, plain", with_spread(found["plain"])],
        ["seconds per step, TLS", with_spread(found["tls"])],
        [f"TLS adds, of {cost['n']} pairs",
         f"{cost['median']:.1%} ({cost['min']:.1%} to {cost['max']:.1%})"],
    ]  # fmt: skip
    return table(["FULL, 1 Gbps", "median (least to most)"], lines)


def kernels(results: Results) -> str:
    found = figures(results, "kernels")
    lines = []
    titles = {"compact": "compact", "expand": "expand",
              "compact_and_count": "compact, count what is not zero outside"}  # fmt: skip
    for operation, title in titles.items():
        for key, name in (("avx2", "AVX2"), ("avx512", "AVX-512")):
            values = [
                found[f"{operation}_vs_memcpy_{key}_{keep}"] for keep in ("0.5", "0.1", "0.01")
            ]
            lines.append([f"{title}, {name}", *[optional(value) for value in values]])
    return table(["of memcpy's traffic", "keep 0.5", "keep 0.1", "keep 0.01"], lines)


def codec(results: Results) -> str:
    found = figures(results, "kernels")
    lines = [[f"{n} levels", *(f"{found[f'{what}{n}_gb_per_s']:.2f}" for what in
                               ("encode", "decode")), f"{found[f'bits{n}']:.3f}"]
             for n in (3, 5, 7, 15, 31)]  # fmt: skip
    return table(["GB/s of fp32, one core", "encode", "decode", "bits per element"], lines)


def optional(value: float | None, digits: int = 2) -> str:
    return "no such instructions" if value is None else f"{value:.{digits}f}"


@dataclass(frozen=True)
class Goal:
    text: str
    bound: str  # "at least" or "at most".
    wanted: Sequence[float]
    here: Sequence[float | None]  # None: this processor has no such instructions.

    def line(self) -> list[str]:
        return [self.text, f"{self.bound} {', '.join(f'{n:g}' for n in self.wanted)}",
                ", ".join(optional(n, digits=3 if n and n < 10 else 1) for n in self.here),
                self.verdict()]  # fmt: skip

    def verdict(self) -> str:
        pairs = [(n, w) for n, w in zip(self.here, self.wanted, strict=True) if n is not None]
        met = all(n >= w if self.bound == "at least" else n <= w for n, w in pairs)
        if not pairs:
            return "not measured"
        return "met" if met else "**missed**"


@dataclass(frozen=True)
class ModesGoal:
    text: str
    here: Sequence[str]  # As they came.

    def line(self) -> list[str]:
        return [self.text, ", ".join(demo_report.GOAL_MODES), ", ".join(self.here) or "none",
                self.verdict()]  # fmt: skip

    def verdict(self) -> str:
        return "met" if self.here == demo_report.GOAL_MODES else "**missed**"


def goal_list(results: Results) -> list[Goal | ModesGoal]:
    return [*kernel_goals(results), *exchange_goals(results), *other_goals(results)]


def kernel_goals(results: Results) -> list[Goal]:
    found = figures(results, "kernels")
    goals = [
        Goal(f"{what} at keep 0.5, 0.1, of memcpy's traffic, {title}", "at least", [wanted] * 2,
             [found[f"{what}_vs_memcpy_{key}_{keep}"] for keep in ("0.5", "0.1")])
        for what in ("compact", "expand")
        for key, title, wanted in (("avx2", "AVX2", 0.85), ("avx512", "AVX-512", 0.95))
    ]  # fmt: skip
    return [*goals,
            Goal("compact, times as fast as torch.masked_select", "at least", [15],
                 [found["compact_vs_torch_masked_select"]]),
            Goal("encode, decode 7 levels, GB/s of fp32, one core", "at least", [2, 4],
                 [found["encode7_gb_per_s"], found["decode7_gb_per_s"]])]  # fmt: skip


def codec_share(result: Mapping[str, Any], row: Mapping[str, Any]) -> float:
    """Bytes on the busiest link, of those that the codec makes."""
    capacity = PAYLOAD_SHARE * parse_rate(result["rate"]) * 1e6 / 8
    codec = row["bound_seconds"] * capacity / result["elements"]
    return float(max(row["link_bytes_per_element"]) / codec)


def exchange_goals(results: Results) -> list[Goal]:
    slow, middle, fast = (rows_of(results, rate) for rate in RATES)
    exact, levels = ("full", "compacted-0.5"), ("levels7-0.5", "levels7-0.2")
    first = figures(results, "exchange-100mbit")

    def times(rows: Rows, name: str) -> float:
        return float(rows[ONE_BUCKET]["seconds"] / rows[name]["seconds"])

    def above_ms(name: str) -> float:
        return float(1e3 * (slow[name]["seconds"] - slow[name]["bound_seconds"]))

    shares = [
        Goal(f"link share of FULL, COMPACTED at {RATES[rate]}", "at least", [wanted] * 2,
             [rows[name]["link_share"] for name in exact])
        for rate, rows, wanted in (("100mbit", slow, 0.95), ("500mbit", middle, 0.95),
                                   ("1gbit", fast, 0.85))
    ]  # fmt: skip
    goals = [
        Goal("bytes on the busiest link at 100 Mbps, of the codec's: FULL, COMPACTED, 7 levels"
             " (keep 0.5, 0.2)", "at most", [1.03] * 4,
             [codec_share(first, slow[name]) for name in (*exact, *levels)]),
        *shares,
        Goal("seconds of FULL, COMPACTED at 100 Mbps, of the bound", "at most", [1.04] * 2,
             [slow[name]["seconds"] / slow[name]["bound_seconds"] for name in exact]),
        Goal("7 levels at 100 Mbps, keep 0.5, 0.2: ms above the bound", "at most", [15] * 2,
             [above_ms(name) for name in levels]),
        Goal("DDP's time (one bucket) over FULL's, COMPACTED's, 7 levels' (keep 0.5, 0.2) at"
             " 100 Mbps", "at least", [2, 4, 33, 60],
             [times(slow, name) for name in (*exact, *levels)]),
        Goal("the same over FULL's, 7 levels' (keep 0.5) at 1 Gbps", "at least", [1.6, 5],
             [times(fast, name) for name in ("full", "levels7-0.5")]),
        Goal("7 levels at keep 0.2, of PowerSGD of rank 1's seconds, 100 Mbps", "at most", [1],
             [slow["levels7-0.2"]["seconds"] / slow["powersgd1"]["seconds"]]),
        Goal("NMSE of the exchange, 7 and 15 levels", "at most", [0.15, 0.03],
             [slow["levels7-0.5"]["nmse"], slow["levels15-0.5"]["nmse"]]),
    ]  # fmt: skip
    agents = first["agents"][:2]
    memory = [agent["memory_bytes"] / 2**20 for agent in agents]
    most = [round(agent["bound_bytes"] / 2**20) for agent in agents]
    return [*goals, Goal("memory of an agent of 3, 2 trainers in COMPACTED steps, MiB", "at most",
                         most, memory)]  # fmt: skip


def other_goals(results: Results) -> list[Goal | ModesGoal]:
    sent, secured = figures(results, "bytes"), figures(results, "tls")
    goals: list[Goal | ModesGoal] = [
        Goal("bytes per element, step and direction of FULL, headers included", "at most",
             [sent["goal"]], [sent["worst_bytes_per_element"]]),
        Goal("what TLS adds to a step at 1 Gbps, %", "at most", [100 * secured["goal"]],
             [100 * secured["tls_cost"]]),
    ]  # fmt: skip
    for name, title in DEMOS.items():
        demo = figures(results, name)
        ceiling = demo_report.GOAL_CEILING_SHARE * demo["speedup_ceiling"]
        goals += [
            Goal(f"the demo's speed-up, {title}", "at least",
                 [min(demo_report.GOAL_SPEEDUP, ceiling)], [demo["speedup"]]),
            Goal(f"accuracies of its two runs apart, {title}", "at most",
                 [demo_report.GOAL_ACCURACY], [demo["accuracy_gap"]]),
            ModesGoal(f"the demo's modes, {title}", demo_report.mode_order(demo)),
        ]  # fmt: skip
    return goals


def goals(results: Results) -> str:
    found = goal_list(results)
    return table(["figure", "goal", "measured", ""], [goal.line() for goal in found])


def missed(results: Results) -> str:
    """How many of how many, within a sentence."""
    verdicts = [goal.verdict() for goal in goal_list(results)]
    return f"{verdicts.count('**missed**')} of {len(verdicts)}"


def runs(results: Results) -> str:
    """Of what each figure is."""
    if not results:
        raise NotMeasuredError("demo")
    lines = [[f"`{r['command']}`", r["commit"], r["date"], f"{r['processor']}; {r['memory']}"]
             for r in results.values()]  # fmt: skip
    return table(["command", "commit", "date", "machine"], lines)


def machine(results: Results) -> str:
    """Of the headline: commits and processors of what it shows."""
    found = measured_of(results)
    commits = sorted({result["commit"] for result in found})
    processors = sorted({result["processor"] for result in found})
    return f"{'; '.join(processors)}; commit {', '.join(commits)}"


def or_not_measured(make: Callable[[Results], str]) -> Callable[[Results], str]:
    def block(results: Results) -> str:
        try:
            return make(results)
        except NotMeasuredError as error:
            data = " PACTRAIN_DATA=folder" if str(error) in NEEDS_DATA else ""
            return f"not measured yet (`make measure ONLY={error}{data}`)"

    return block


BLOCKS = {
    make.__name__.replace("_", "-"): or_not_measured(make)
    for make in (headline, machine, plot, demo_buckets, demo_excerpt, demos, exchange,
                 exchange_buckets, stolen, tcp, link_bytes, tls, kernels, codec, goals, missed,
                 runs)
}  # fmt: skip
