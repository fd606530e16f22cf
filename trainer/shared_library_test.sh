#!/bin/sh
# The shared library loads into other people's processes: it needs nothing at run
# time but glibc, and shows nothing of its own but pt_*.
set -eu
library=$1

needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
  grep -Ev '^(libm|libc|libpthread|ld-linux-x86-64|ld-linux-aarch64)\.so' || true)
if [ -n "$needed" ]; then
  echo "needs at run time: $needed" >&2
  exit 1
fi

# Weak symbols of libstdc++'s own templates may remain.
shown=$(nm -D --defined-only "$library" | awk '$2 != "W" && $2 != "V" {print $3}' |
  grep -v '^pt_' || true)
if [ -n "$shown" ]; then
  echo "exports: $shown" >&2
  exit 1
fi
nm -D --defined-only "$library" | grep -q ' T pt_attach$'
