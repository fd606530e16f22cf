from __future__ import annotations

import re
from pathlib import Path

from pactrain.types import Codec, Mode

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "session.md"


def table():
    """The cells of each row of the guide's table of stats()."""
    text = GUIDE.read_text().partition("| name, after `pactrain/` |")[2]
    rows = text.partition("\n\n")[0].splitlines()[2:]
    return [row.strip("|").split(" | ") for row in rows]


def test_the_guide_lists_the_names_of_stats_and_no_others(attach, net):
    attached = attach(net)
    attached.session.report(loss=1.0, lr=0.1)
    attached.step()
    names = [name for row in table() for name in re.findall(r"`(\w+)`", row[0])]
    assert len(names) == len(set(names))
    assert {f"pactrain/{name}" for name in names} == attached.session.stats().keys()


def test_the_guide_lists_the_numbers_of_modes_and_codecs():
    (row,) = [row for row in table() if "`mode`" in row[0]]
    modes = ", ".join(f"{mode.value} {mode.name}" for mode in Mode)
    exact = ", ".join(f"{codec.value} {codec.words}" for codec in list(Codec)[:2])
    levels = [codec.words.removesuffix(" levels") for codec in list(Codec)[2:]]
    last = f"3 to 7: {', '.join(levels[:-1])} and {levels[-1]} levels"
    assert row[2].strip() == f"{modes}; {exact}, {last}"
