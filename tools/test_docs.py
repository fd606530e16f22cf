"""The documentation site's own rules: links as they are there, and dead ones found."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = runpy.run_path(str(ROOT / "tools/docs.py"))


@pytest.mark.parametrize(
    ("page", "text", "there"),
    [
        ("docs/operations.md", "[x](protocol.md#a)", "[x](protocol.md#a)"),
        ("docs/operations.md", "[x](#metrics)", "[x](#metrics)"),
        ("docs/operations.md", "[x](../ARCHITECTURE.md#commit)", "[x](architecture.md#commit)"),
        ("docs/operations.md", "[all](../deploy/kubernetes)", "all (`deploy/kubernetes`)"),
        ("docs/operations.md", "[x](https://example.org/a.md)", "[x](https://example.org/a.md)"),
        ("README.md", "![p](docs/images/demo.png)", "![p](images/demo.png)"),
        ("docs/upkeep.md", "[operations.md](operations.md#a)", "[](operations.md#a)"),
        ("README.md", "[LICENSE](LICENSE)", "`LICENSE`"),
        ("README.md", "[gone](docs/gone.md)", "[gone](docs/gone.md)"),
    ],
)
def test_links_are_those_of_the_site(page: str, text: str, there: str) -> None:
    assert DOCS["moved"](text, ROOT / page) == there


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here">1</a><a href="b.html#gone">2</a><a href="c.html">3</a>'
        '<a href="#top">4</a><p id="top"><a href="https://example.org/x">5</a><img src="no.png">'
    )
    (tmp_path / "b.html").write_text('<h1 id="here">b</h1>')
    assert DOCS["dead_links"](tmp_path) == [
        "a.html: b.html#gone",
        "a.html: c.html",
        "a.html: no.png",
    ]


def test_troubleshooting_quotes_what_daemons_say() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text()
    sources = (p for room in ("agent", "base", "coordinator") for p in (ROOT / room).rglob("*.cc"))
    # Literals as the compiler joins them.
    said = "".join(re.sub(r'"\s*\n\s*"', "", source.read_text()) for source in sources)
    quoted = re.findall(r'"([^"\n]+)"', page)
    assert len(quoted) > 5
    assert [text for text in quoted if text not in said] == []
