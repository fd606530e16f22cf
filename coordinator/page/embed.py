"""Writes files as a C++ table of bytes, so that the page needs nothing beside the program.

Usage: embed.py FILE... >OUT.cc
"""

from __future__ import annotations

import sys
from pathlib import Path

TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
         ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}  # fmt: skip


def main(names: list[str]) -> None:
    print('#include "coordinator/page/assets.h"\n')
    print("namespace pactrain::coordinator {\nnamespace {\n")
    paths = sorted(map(Path, names), key=lambda path: path.name)
    for number, path in enumerate(paths):
        numbers = ",".join(map(str, path.read_bytes()))
        print(f"constexpr unsigned char kBody{number}[] = {{{numbers}}};")
    print("\nconst Asset kAssets[] = {")
    for number, path in enumerate(paths):
        body = f"{{reinterpret_cast<const char*>(kBody{number}), sizeof(kBody{number})}}"
        print(f'    {{"/{path.name}", "{TYPES[path.suffix]}", {body}}},')
    print("};\n\n}  // namespace\n")
    print("absl::Span<const Asset> Assets() { return kAssets; }\n")
    print("}  // namespace pactrain::coordinator")


if __name__ == "__main__":
    main(sys.argv[1:])
