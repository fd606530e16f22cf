"""Writes the alerts of deploy/prometheus as a C++ table, with what their runbooks say.

Usage: alert_rules.py ALERTS.yml RUNBOOKS.md >OUT.cc

So the page warns of what Prometheus warns of, by the same numbers: they stand in one place.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
PARTS = {"symptom": "Symptom", "causes": "Causes", "command": "Command", "todo": "Do",
         "not_mean": "It does not mean"}  # fmt: skip


def threshold(expr: str) -> float:
    """The number that what is measured is held against: a factor, or a bound; else 1."""
    bare = re.sub(r'\[[^]]*\]|"[^"]*"|quantile_over_time\(0\.5', "", expr)
    found = re.findall(r"([0-9.]+) \*", bare) or re.findall(r"(?:[<>]|==) ([0-9.]+)", bare)
    return float(found[-1]) if found else 1.0


def window(expr: str) -> int:
    """Seconds of the range that it counts over; 0: it needs none."""
    found = re.search(r"(?:\[|increase|offset |mean)(\d+)([smhd])", expr)
    return int(found[1]) * SECONDS[found[2]] if found else 0


def alerts(text: str) -> list[dict[str, str]]:
    """Each rule's fields as text; of YAML only what alerts.yml uses."""
    found = []
    for block in re.split(r"^ *- alert: ", text, flags=re.M)[1:]:
        name, rest = block.split("\n", 1)
        expr = re.search(r"^ *expr: (?:\|\n((?: {10}.*\n)+)|(.*)\n)", rest, flags=re.M)
        severity = re.search(r"severity: (\w+)", rest)
        lasts = re.search(r"^ *for: (\d+)([smhd])", rest, flags=re.M)
        if expr is None or severity is None or lasts is None:
            raise ValueError(f"alert {name}: has no expr, severity or for that can be read")
        wanted = re.sub(r"\s+", " ", expr[1] or expr[2].strip("'")).strip()
        found.append({"name": name.strip(), "expr": wanted, "severity": severity[1],
                      "for": str(int(lasts[1]) * SECONDS[lasts[2]])})  # fmt: skip
    return found


def runbook(text: str, name: str) -> dict[str, str]:
    """What an alert's entry says, as plain text."""
    entry = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", text, flags=re.M | re.S)
    if entry is None:
        raise ValueError(f"alert {name}: the runbooks have no entry for it")
    said = {}
    for key, title in PARTS.items():
        line = re.search(rf"^- \*\*{title}\*\*:? *(.*)$", entry[1], flags=re.M)
        if line is None:
            raise ValueError(f"alert {name}: its runbook has no line '{title}'")
        # The page has no documents to lead to: it names them.
        text = re.sub(r"\[([^]]*)\]\(([^)#]+)[^)]*\)", r'"\1" (docs/\2)', line[1])
        said[key] = text.replace("`", "")
    return said


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def main(rules: str, runbooks: str) -> None:
    print('#include "coordinator/page/alert_rules.h"\n')
    print("namespace pactrain::coordinator {\nnamespace {\n\nconstexpr AlertRule kRules[] = {")
    for alert in alerts(Path(rules).read_text()):
        said = runbook(Path(runbooks).read_text(), alert["name"])
        texts = [alert["name"], alert["severity"], alert["expr"], *said.values()]
        numbers = [alert["for"], str(window(alert["expr"])), repr(threshold(alert["expr"]))]
        print("    {" + ", ".join([*map(quoted, texts), *numbers]) + "},")
    print("};\n\n}  // namespace\n")
    print("absl::Span<const AlertRule> AlertRules() { return kRules; }\n")
    print("}  // namespace pactrain::coordinator")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
