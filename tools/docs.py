"""`make docs`: the documentation site in out/docs, from docs/, the docstrings and --help.

Pages stay as they lie in the checkout: what links out of docs/ is turned to the page of the
site that has it, or to a name. Ends with a line of JSON: pages, links between them that lead
nowhere, and warnings. Exit code 1: there are some.
"""

from __future__ import annotations

import html.parser
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
from collections.abc import Callable
from pathlib import Path

import manual

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "out/docs"
SPHINX = ROOT / ".cache/docs"
# Pages that lie elsewhere than in docs/, by their names on the site.
ELSEWHERE = {
    "README.md": "start",
    "ARCHITECTURE.md": "architecture",
    "CONTRIBUTING.md": "contributing",
    "CHANGELOG.md": "changelog",
    "examples/slurm/README.md": "slurm",
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def moved(text: str, page: Path) -> str:
    """The page's text with its links as they are on the site."""

    def link(found: re.Match[str]) -> str:
        picture, words, target = found.groups()
        path, _, anchor = target.partition("#")
        if not path or ":" in path:
            return found[0]
        place = (page.parent / path).resolve()
        name = str(place.relative_to(ROOT)) if place.is_relative_to(ROOT) else ""
        if name in ELSEWHERE:
            name = f"{ELSEWHERE[name]}.md"
        elif place.parent in (ROOT / "docs", ROOT / "docs/images") and place.is_file():
            name = str(place.relative_to(ROOT / "docs"))
        elif place.exists():
            # Of the checkout and the tarball alone.
            return f"{words} (`{name}`)" if words.strip("`") != name else f"`{name}`"
        # A page is called by its title there, not by its file.
        words = "" if words == place.name and name else words
        return f"{picture}[{words}]({name or target}{'#' if anchor else ''}{anchor})"

    # Of rules for nft, which the site's highlighter does not know.
    return LINK.sub(link, text).replace("```nft\n", "```text\n")


def programs_page() -> str:
    text = "# Programs\n\nWhat each says with `--help`. The packages have it as manual pages.\n"
    for program in (ROOT / "out/bin" / name for name in manual.SECTIONS):
        said = manual.help_of(program)
        text += f"\n## {program.name}\n\n```text\n{said}\n```\n"
        for command in manual.commands_of(said):
            said = manual.help_of(program, command)
            text += f"\n### {program.name} {command}\n\n```text\n{said}\n```\n"
    return text


def api_page() -> str:
    names = [name for name in __import__("pactrain").__all__ if not name.startswith("_")]
    text = "# The Python package\n\nWhat `import pactrain` has.\n"
    for name in sorted(names, key=lambda name: (name.endswith("Error"), name.lower())):
        kind = "class" if name[0].isupper() else "function"
        if name.endswith("Error") or name == "InvalidArgument":
            kind = "exception"
        text += f"\n## {name}\n\n```{{eval-rst}}\n.. auto{kind}:: pactrain.{name}\n```\n"
    return text


def fill(folder: Path) -> None:
    """Everything that Sphinx reads."""
    shutil.copytree(ROOT / "docs/images", folder / "images")
    for file in (ROOT / "tools/docs_site").iterdir():
        shutil.copy(file, folder)
    pages = {page: page.stem for page in (ROOT / "docs").glob("*.md")}
    pages |= {ROOT / path: name for path, name in ELSEWHERE.items()}
    for page, name in pages.items():
        (folder / f"{name}.md").write_text(moved(page.read_text(), page))
    (folder / "programs.md").write_text(programs_page())
    (folder / "api.md").write_text(api_page())


class _Page(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors.add(values.get("id") or "")
        if tag == "a" and values.get("href"):
            self.links.append(str(values["href"]))
        if tag == "img" and values.get("src"):
            self.links.append(str(values["src"]))


def dead_links(site: Path) -> list[str]:
    """Links between pages of the site that lead to no page, or to no place in it."""
    pages = {page: _Page(page.read_text()) for page in site.rglob("*.html")}
    wrong = []
    for page, content in pages.items():
        for link in content.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / urllib.parse.unquote(parts.path)).resolve()
            target = page if not parts.path else target
            there = target in pages or (target.is_file() and not parts.fragment)
            anchor = urllib.parse.unquote(parts.fragment)
            if not there or (anchor and target in pages and anchor not in pages[target].anchors):
                wrong.append(f"{page.relative_to(site)}: {link}")
    return wrong


def warnings_of(said: str, tell: Callable[[str], None]) -> int:
    lines = [line for line in said.splitlines() if re.search(r"\b(WARNING|ERROR|CRITICAL)\b", line)]
    for line in lines:
        tell(line)
    return len(lines)


def main() -> int:
    version = runpy.run_path(str(ROOT / "python_client/src/pactrain/_version.py"))["__version__"]
    paths = [SPHINX, ROOT / "python_client/src", *os.environ.get("PYTHONPATH", "").split(":")]
    environment = {**os.environ, "PACTRAIN_VERSION": version}
    environment["PYTHONPATH"] = ":".join(str(path) for path in paths if str(path))
    shutil.rmtree(SITE, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder))
        command = [sys.executable, "-m", "sphinx", "-q", "-E", "-b", "html", folder, str(SITE)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        warned = warnings_of(
            done.stderr, lambda line: print(line.replace(f"{folder}/", ""), flush=True)
        )
    if done.returncode != 0:
        print(done.stderr)
    dead = dead_links(SITE)
    for link in dead:
        print(f"leads nowhere: {link}")
    pages = len(list(SITE.glob("*.html")))
    print(json.dumps({"pages": pages, "docs_warnings": warned + len(dead)}))
    return 1 if done.returncode != 0 or warned or dead else 0


if __name__ == "__main__":
    sys.exit(main())
