"""What a machine is, in a line."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path


def processor() -> str:
    """Its name, what tells apart those with one name, cores, and what our kernels use of it."""
    fields = dict(re.findall(r"^([^\t\n]+)\t*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M))
    flags = fields.get("flags", "").split()
    sets = [text for flag, text in (("avx2", "AVX2"), ("avx512bw", "AVX-512")) if flag in flags]
    name = fields.get("model name", platform.machine())
    return (f"{name} (family {fields.get('cpu family', '?')}, model {fields.get('model', '?')}), "
            f"{os.cpu_count()} cores, {' and '.join(sets) or 'no AVX2'}")  # fmt: skip
