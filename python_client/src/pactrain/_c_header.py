"""ctypes of a C header: of C exactly what the headers of the trainer library use.

Anything else in a header is an error, never left out.
"""

from __future__ import annotations

import ctypes
import keyword
import re
from pathlib import Path
from typing import Any

# None: only its address is used, as a number: that of an array, or on a device.
_KINDS: dict[str, Any] = dict.fromkeys(("void", "float", "uint8_t"))
for _name in ("char", "int", "int32_t", "uint32_t", "uint64_t", "double"):
    _KINDS[_name] = getattr(ctypes, "c_" + _name.removesuffix("_t"))
_ADDRESSES = {None: ctypes.c_void_p, ctypes.c_char: ctypes.c_char_p}
_COMMENT = re.compile(r"/\*.*?\*/", re.S)
_ITEM = re.compile(
    r"""(?:
      \#define[ ](?P<constant>\w+)[ ](?P<number>0x[0-9A-F]+|0|[1-9]\d*)u?[ ]*\n
    | \#include[ ]"(?:\w+/)*(?P<include>\w+\.h)"
    | enum\s\w+\s\{(?P<enum>[^{}]*)\};
    | typedef\sstruct\s(?P<opaque>\w+)\s(?P=opaque);
    | typedef\sstruct\s\{(?P<fields>[^{}]*);\s*\}\s(?P<struct>\w+);
    | typedef\s(?P<gives>[\w*\s]+)\(\*(?P<callback>\w+)\)\((?P<takes>[^()\[\]]*)\);
    | (?P<function>[\w*\s]+)\((?P<parameters>[^()\[\]]*)\);
    | \#include[ ]<stdint\.h>
    | \#ifndef[ ]\w+\n\#define[ ]\w+\n
    | \#ifdef[ ]__cplusplus\n(?:extern[ ]"C"[ ]\{|\})\n\#endif\n
    | \#endif\s*\Z
    )\s*""",
    re.X,
)
_ENUMERATOR = re.compile(r"\s*(\w+)(?:\s*=\s*(0|[1-9]\d*))?\s*")
_DECLARATION = re.compile(
    r"\s*(?:const\s+)?(\w+)((?:\s*\*(?:\s*const\b)?)*)\s*\b"
    r"(\w+(?:,\s*\w+)*)(?:\[([1-9]\d*)\])?\s*"
)


class Header:
    """A header, and those of its folder that it includes, by the names in C.

    `types` are structs and callbacks, `numbers` those of #define and enum, `functions`
    results and parameters. A field named by a keyword of Python has a `_` at its end.

    Raises:
      ValueError: something in it is not known; names the line.
    """

    def __init__(self, path: Path) -> None:
        self.types = dict(_KINDS)
        self.numbers: dict[str, int] = {}
        self.functions: dict[str, tuple[Any, list[Any]]] = {}
        self._begun: set[Path] = set()
        self._read(path)

    def _read(self, path: Path) -> None:
        if path in self._begun:
            return
        self._begun.add(path)
        text = _COMMENT.sub(lambda c: " " + "\n" * c[0].count("\n"), path.read_text())
        at = len(text) - len(text.lstrip())
        try:
            while item := _ITEM.match(text, at):
                self._take(item, path)
                at = item.end()
            if at < len(text):
                raise LookupError(text[at:].split("\n", 1)[0])
        except LookupError as error:
            line = text.count("\n", 0, max(at, text.find(str(error), at))) + 1
            raise ValueError(f"{path}:{line}: cannot be read: {error}") from None

    def _take(self, item: re.Match[str], path: Path) -> None:
        match item.lastgroup:
            case "number":
                self.numbers[item["constant"]] = int(item["number"], 0)
            case "include":
                self._read(path.parent / item["include"])
            case "enum":
                value = -1
                for text in item["enum"].split(","):
                    name, given = _groups(_ENUMERATOR, text)
                    self.numbers[name] = value = int(given or value + 1)
            case "opaque":
                self.types[item["opaque"]] = None
            case "struct":
                texts = item["fields"].split(";")
                fields = [field for text in texts for field in self._declared(text)]
                fields = [(n + "_" * keyword.iskeyword(n), kind) for n, kind in fields]
                # Slots: an attribute that is no field is an error.
                name, members = item["struct"], {"__slots__": (), "_fields_": fields}
                self.types[name] = type(name, (ctypes.Structure,), members)
            case "takes":
                result = self._declared(item["gives"] + item["callback"], True)[0][1]
                takes = self._parameters(item["takes"])
                self.types[item["callback"]] = ctypes.CFUNCTYPE(result, *takes)
            case "parameters":
                name, result = self._declared(item["function"], True)[0]
                self.functions[name] = (result, self._parameters(item["parameters"]))

    def _parameters(self, text: str) -> list[Any]:
        texts = [] if text == "void" else text.split(",")
        return [self._declared(one)[0][1] for one in texts]

    def _declared(self, text: str, is_result: bool = False) -> list[tuple[str, Any]]:
        base, stars, names, size = _groups(_DECLARATION, text)
        kind: Any = self.types.get(base)
        if base in self.types:
            for _ in range(stars.count("*")):
                kind = _ADDRESSES.get(kind) or ctypes.POINTER(kind)
        is_known = kind or (base == "void" and is_result)
        # In `int *a, b` the second is no address.
        if not is_known or ("," in names and (stars or size)):
            raise LookupError(text.strip())
        kind = kind * int(size) if size else kind
        return [(name.strip(), kind) for name in names.split(",")]


def _groups(pattern: re.Pattern[str], text: str) -> tuple[str | Any, ...]:
    found = pattern.fullmatch(text)
    if found is None:
        raise LookupError(text.strip())
    return found.groups()
