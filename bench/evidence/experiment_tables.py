"""What the experiments say, as tables: amounts, criteria, start, noise, and r. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from bench.evidence.experiments import KEEPS, OUTER_MOMENTA, RISKS, VARIANTS
from bench.evidence.figures import upper95
from bench.evidence.methods import DILOCO_MOMENTUM, DILOCO_RATE, ROWS
from bench.evidence.tuning import Piece

NOT_RUN = "not run yet"
# Methods whose error of one step is the whole of it (nothing is fed back): of mean 0, and not.
UNBIASED = ("levels7", "levels3-0.5", "levels7-0.5", "levels7-0.2", "terngrad", "paper")
BIASED = ("topk0.1", "topk0.01")
MASK_ALONE = {1.0: "ddp", 0.5: "exact-0.5", 0.3: "exact-0.3", 0.2: "exact-0.2", 0.1: "exact-0.1"}
Experiments = Mapping[tuple[str, int], Piece]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


@dataclass(frozen=True)
class Pieces:
    """Those of the experiments and of the rows, all at the workload's own rate."""

    found: Experiments

    def of(self, name: str) -> dict[int, Piece]:
        return {seed: piece for (own, seed), piece in self.found.items() if own == name}

    def gaps(self, name: str, against: str = "ddp") -> list[float]:
        """Test score of `against` minus that of `name`, of equal seeds: nats that it loses."""
        own, other = self.of(name), self.of(against)
        return [other[seed]["test"] - own[seed]["test"] for seed in sorted(own) if seed in other]


def _said(gaps: Sequence[float]) -> list[str]:
    """Mean, bound and seeds."""
    if not gaps:
        return [NOT_RUN, "-", "0"]
    upper = upper95(gaps)
    return [f"{fmean(gaps):+.3f}", "-" if upper is None else f"{upper:+.3f}", str(len(gaps))]


def _name(codec: str, keep: float) -> str:
    if keep == 1:
        return "ddp" if codec == "exact" else codec
    return f"{codec}-{keep:g}"


@dataclass(frozen=True)
class Point:
    """Of an amount and a codec: bytes per element, and nats lost."""

    keep: float
    codec: str
    bytes_per_element: float
    gap: float


def points(pieces: Pieces) -> list[Point]:
    found = []
    for codec in ("exact", "levels7"):
        for keep in KEEPS:
            name = _name(codec, keep)
            gaps = pieces.gaps(name)
            if gaps:
                some = next(iter(pieces.of(name).values()))
                found.append(Point(keep, codec, some["bytes_per_element"], fmean(gaps)))
    return found


def front(found: Sequence[Point]) -> list[Point]:
    """Those of which none other has both fewer bytes and no greater loss."""
    return [
        point
        for point in found
        if not any(
            (o.bytes_per_element, o.gap) != (point.bytes_per_element, point.gap)
            and o.bytes_per_element <= point.bytes_per_element
            and o.gap <= point.gap
            for o in found
        )
    ]


def amounts_table(pieces: Pieces) -> str:
    best = {(point.keep, point.codec) for point in front(points(pieces))}
    rows = []
    for keep in KEEPS:
        for codec, title in (("exact", "exact"), ("levels7", "7 levels")):
            own = pieces.of(_name(codec, keep))
            some = next(iter(own.values()), None)
            rows.append([f"{1 - keep:g}", title, f"{some['keep']:.2f}" if some else "-",
                         f"{some['bytes_per_element']:.3g}" if some else "-",
                         *_said(pieces.gaps(_name(codec, keep))),
                         "yes" if (keep, codec) in best else ""])  # fmt: skip
    return table(["amount", "codec", "kept of all", "bytes per element", "nats above DDP",
                  "95 % bound", "seeds", "on the front"], rows)  # fmt: skip


def criteria_table(pieces: Pieces) -> str:
    names = ["levels7-0.2", *(name for name, v in VARIANTS.items() if v.group == "criteria")]
    rows = []
    for name in names:
        some = next(iter(pieces.of(name).values()), None)
        title = "magnitude, by layer" if name in ROWS else VARIANTS[name].row.title
        rows.append([title, f"{some['keep']:.2f}" if some else "-", *_said(pieces.gaps(name))])
    return table(["criterion, amount 0.8, 7 levels", "kept of all", "nats above DDP",
                  "95 % bound", "seeds"], rows)  # fmt: skip


def frozen_words(pieces: Pieces) -> str:
    """Our own way to lose less under masks, where the network need not get smaller."""
    ways = {"frozen, 7 levels": "freeze", "set to zero, 7 levels": "levels7-0.2",
            "set to zero, sent exactly": MASK_ALONE[0.2]}  # fmt: skip
    lost = {words: gaps for words, name in ways.items() if (gaps := pieces.gaps(name))}
    if len(lost) < len(ways):
        return f"**Frozen instead of pruned.** {NOT_RUN.capitalize()}."
    said = "; ".join(f"{words}: {fmean(gaps):+.3f}" for words, gaps in lost.items())
    fewest = min(map(len, lost.values()))
    return (
        '**Masks for the links alone: `pactrain.prune(model, amount, kind="freeze")`.** Weights '
        "outside the mask stay as they are, and as few bytes travel. The network gets no smaller. "
        f"Nats lost by the transformer at amount 0.8 ({fewest} seeds): {said}."
    )


def outer_words(pieces: Pieces) -> str:
    """What DiLoCo's outer momentum is, and what others brought; held-out scores."""
    tried = {momentum: own[1]["curve"][-1][1] for momentum in OUTER_MOMENTA
             if (own := pieces.of(f"outer-{momentum:g}"))}  # fmt: skip
    said = ", ".join(f"{score:.1f} with {momentum:g}" for momentum, score in tried.items())
    return (f"DiLoCo's outer rate is {DILOCO_RATE:g} and its outer momentum {DILOCO_MOMENTUM:g}, "
            "as its authors have them. Held-out points of resnet9 at the end, H = 30, one seed: "
            f"{said if len(tried) == len(OUTER_MOMENTA) else NOT_RUN}. A point is luck: as much "
            "lay between two kinds of processors at 0.9.")  # fmt: skip


def long_words(pieces: Pieces) -> str:
    """How far runs came whose rate falls to 0."""
    said = [
        f"{own[1]['test']:.2f} % with {variant.row.title} in {own[1]['steps']} steps "
        f"({own[1]['cpu_seconds'] / 3600:.2f} CPU hours)"
        for name, variant in VARIANTS.items()
        if variant.group == "long" and (own := pieces.of(name))
    ]
    if not said:
        return f"A long run with a rate that falls to 0: {NOT_RUN} (`make report-experiments`)."
    left = [f"{variant.row.title} in {variant.row.steps * variant.workload.steps} steps"
            for name, variant in VARIANTS.items()
            if variant.group == "long" and not pieces.of(name)]  # fmt: skip
    missing = f" {NOT_RUN.capitalize()}: {', '.join(left)}." if left else ""
    return f"With a rate that falls to 0 resnet9 came to {', '.join(said)}: one seed.{missing}"


def fresh_table(pieces: Pieces) -> str:
    rows = []
    for name, variant in VARIANTS.items():
        if variant.group == "fresh":
            gaps = pieces.gaps(name, "fresh-ddp")
            own = [-piece["test"] for piece in pieces.of(name).values()]
            rows.append([variant.row.title, f"{fmean(own):.3f}" if own else NOT_RUN,
                         *(["-"] * 3 if name == "fresh-ddp" else _said(gaps))])  # fmt: skip
    return table(["from random weights", "nats", "above DDP", "95 % bound", "seeds"], rows)


def noise_table(pieces: Pieces) -> str:
    """What the noise alone costs: above the same mask without it."""
    rows = []
    for risk in RISKS:
        cells = [f"{risk:g}"]
        for keep in (1.0, 0.5, 0.2):
            gaps = pieces.gaps(f"noise{risk:g}-{keep:g}", MASK_ALONE[keep])
            mean, upper, seeds = _said(gaps)
            bound = "one seed" if len(gaps) == 1 else f"<= {upper}, {seeds} seeds"
            cells.append(f"{mean} ({bound})" if gaps else mean)
        rows.append(cells)
    return table(["r of the noise", "nats it costs, no mask", "keep 0.5", "keep 0.2"], rows)


def noise_gaps(pieces: Pieces, risk: float, keep: float) -> list[float]:
    return pieces.gaps(f"noise{risk:g}-{keep:g}", MASK_ALONE[keep])


def noise_ratios(pieces: Pieces) -> dict[float, list[float]]:
    """By keep: what noise costs under a mask over what it costs without. Empty: not all was run."""
    found: dict[float, list[float]] = {}
    for keep in (0.5, 0.2):
        for risk in RISKS:
            dense, masked = noise_gaps(pieces, risk, 1.0), noise_gaps(pieces, risk, keep)
            if not dense or not masked or fmean(dense) <= 0:
                return {}
            found.setdefault(keep, []).append(fmean(masked) / fmean(dense))
    return found


def noise_share(ratios: Mapping[float, list[float]]) -> str:
    said = []
    for keep, own in ratios.items():
        ends = dict.fromkeys(f"{end:.2f}" for end in (min(own), max(own)))
        said.append(f"{' to '.join(ends)} times at keep {keep:g}")
    return " and ".join(said)


def noise_words(pieces: Pieces) -> str:
    """Whether masks bear noise better, of the seeds that there are."""
    ratios = noise_ratios(pieces)
    if not ratios:
        return NOT_RUN
    fewest = min(len(noise_gaps(pieces, risk, keep)) for risk in RISKS for keep in (1.0, *ratios))
    seeds = "one seed, so a hint and no result" if fewest == 1 else f"{fewest} seeds"
    return ("Under a mask the same noise costs, of what it costs without one, "
            f"{noise_share(ratios)} ({seeds}).")  # fmt: skip


def sites_table(pieces: Pieces) -> str:
    """Levels where five sites' agents encode, beside the chain's three."""
    rows = []
    for keep in (1.0, 0.5):
        for name, words in ((_name("levels7", keep), "chain of three"),
                            (f"star-{keep:g}", "star of five")):  # fmt: skip
            risks = [p["risk"] for p in pieces.of(name).values() if p["risk"] is not None]
            rows.append([f"{keep:g}", words, f"{fmean(risks):.2f}" if risks else "-",
                         *_said(pieces.gaps(name))])  # fmt: skip
    return table(["keep", "sites", "r", "nats above DDP", "95 % bound", "seeds"], rows)


def ranks(values: Sequence[float]) -> list[float]:
    """From 0; equal values share the mean of theirs."""
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) - 1) / 2 for v in values]


def rank_correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Spearman's. None: under three pairs, or one side is constant."""
    if len(xs) < 3:
        return None
    a, b = ranks(xs), ranks(ys)
    mean = (len(xs) - 1) / 2
    over = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    under = (sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b)) ** 0.5
    return over / under if under else None


def unbiased() -> list[str]:
    with_noise = ("levels7", "noise", "star")
    return [*UNBIASED, *(name for name in VARIANTS if name.startswith(with_noise))]


def risk_pairs(pieces: Pieces, names: Sequence[str]) -> list[tuple[str, float, float]]:
    """(row, mean r, nats above the same mask without noise)."""
    found = []
    for name in names:
        row = ROWS[name] if name in ROWS else VARIANTS[name].row
        gaps = pieces.gaps(name, MASK_ALONE[row.keep])
        risks = [piece["risk"] for piece in pieces.of(name).values() if piece["risk"] is not None]
        if gaps and risks:
            found.append((row.title, fmean(risks), fmean(gaps)))
    return sorted(found, key=lambda pair: pair[1])


def risk_table(pieces: Pieces) -> str:
    pairs = risk_pairs(pieces, [*unbiased(), *BIASED])
    return table(["row", "mean r", "nats above the same mask, exact"],
                 [[t, f"{r:.2f}", f"{gap:+.3f}"] for t, r, gap in pairs])  # fmt: skip


def risk_words(pieces: Pieces) -> str:
    pairs = risk_pairs(pieces, unbiased())
    rho = rank_correlation([r for _, r, _ in pairs], [gap for _, _, gap in pairs])
    if rho is None:
        return NOT_RUN
    return (
        f"Over {len(pairs)} rows with noise of mean 0 Spearman's rank correlation of r and loss "
        f"is {rho:.2f}.\nTopK leaves out the same elements step after step: its error is no "
        "noise, and r says too little of it.\nRows with error feedback, PowerSGD among them, are "
        "left out: what a step of theirs misses comes later, and r counts it as lost."
    )
