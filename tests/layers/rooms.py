"""The rooms of the tree and which room may use which (style.md's arrows, written out).

A room is a folder; a file or Bazel package belongs to the longest room that is a prefix
of its path. `trainer/wire` is the one header that trainer library and agent share,
`trainer/membership_abi` is the pure core's part of the C ABI, and `protocol/proto_*` turns
protobuf messages into the plain structs of `protocol`.
"""

from __future__ import annotations

PROTO_CONVERT = "protocol/proto_convert"

ALLOWED: dict[str, frozenset[str]] = {
    "base": frozenset(),
    # The three of base that the trainer library includes, too.
    "base/fd": frozenset(),
    "base/safe_folders": frozenset(),
    "base/version": frozenset(),
    # A constant in what is shipped; tests weaken rules by it.
    "base/weakened": frozenset(),
    # Apart, since base links no Prometheus.
    "base/metrics": frozenset({"base", "base/tls"}),
    # The same for OpenSSL and for gRPC.
    "base/tls": frozenset({"base", "base/fd", "base/safe_folders"}),
    "base/rpc": frozenset({"base", "base/tls"}),
    "protocol": frozenset({"base"}),
    "proto": frozenset(),
    # Reads the daemons' settings; knows neither of them.
    "config": frozenset({"base", "base/safe_folders", "base/version", "proto"}),
    # The one place where wire data becomes plain structs.
    PROTO_CONVERT: frozenset({"base", "protocol", "proto"}),
    "kernels": frozenset(),
    # Also read by nvcc; the driver is opened by name, never linked.
    "kernels/cuda": frozenset({"kernels"}),
    "trainer/cuda": frozenset({"kernels/cuda"}),
    # The NCCL of torch, found by name.
    "trainer/nccl": frozenset({"trainer/cuda"}),
    "trainer/wire": frozenset(),
    "trainer/membership_abi": frozenset(),
    "trainer/core": frozenset(
        {"base/weakened", "kernels", "trainer/membership_abi", "trainer/wire"}
    ),
    "trainer": frozenset(
        {
            "base/fd",
            "base/safe_folders",
            "base/version",
            "kernels",
            "kernels/cuda",
            "trainer/core",
            "trainer/cuda",
            "trainer/membership_abi",
            "trainer/nccl",
            "trainer/wire",
        }
    ),
    # For C++ trainers; libtorch is in a header of its own.
    "trainer/cpp": frozenset({"trainer"}),
    "trainer/cpp/libtorch": frozenset({"trainer/cpp"}),
    # Of the exchange only what is pure; sockets are in agent/exchange/tcp.
    "agent/core": frozenset(
        {"base", "base/weakened", "protocol", "trainer/wire", "agent/exchange"}
    ),
    "agent/codec": frozenset({"base", "protocol", "kernels"}),
    "agent/exchange": frozenset({"base", "base/weakened", "protocol", "kernels", "agent/codec"}),
    "agent/exchange/tcp": frozenset({"base", "base/tls", "protocol", "agent/exchange"}),
    "agent/local": frozenset({"base", "base/fd", "base/safe_folders", "protocol", "trainer/wire"}),
    "agent/rpc": frozenset(
        {"base", "base/rpc", "base/tls", "protocol", "proto", PROTO_CONVERT, "agent/core"}
    ),
    "agent/metrics": frozenset({"base", "base/metrics", "base/version", "protocol", "agent/core"}),
    "agent": frozenset(
        {
            "base",
            "base/metrics",
            "base/tls",
            "base/version",
            "config",
            "protocol",
            "proto",
            PROTO_CONVERT,
            "kernels",
            "trainer/wire",
            "agent/core",
            "agent/codec",
            "agent/exchange",
            "agent/exchange/tcp",
            "agent/local",
            "agent/rpc",
            "agent/metrics",
        }
    ),
    # The chain of the audit log's hashes, which pactrain-admin follows, too.
    "coordinator/audit": frozenset({"base", "base/tls", "protocol"}),
    "coordinator/core": frozenset({"base", "base/weakened", "protocol"}),
    "coordinator/store": frozenset(
        {
            "base",
            "base/safe_folders",
            "base/tls",
            "protocol",
            "proto",
            "coordinator/audit",
            PROTO_CONVERT,
            "coordinator/core",
        }
    ),
    # Of `coordinator` itself rpc uses the driver.
    "coordinator/rpc": frozenset(
        {
            "base",
            "base/rpc",
            "base/tls",
            "base/version",
            "protocol",
            "proto",
            PROTO_CONVERT,
            "coordinator/core",
            "coordinator",
        }
    ),
    "coordinator/metrics": frozenset(
        {"base", "base/metrics", "base/version", "protocol", "coordinator/core"}
    ),
    # What it shows is of the core alone; only its server knows HTTP, and who may read.
    "coordinator/page": frozenset(
        {"base", "base/metrics", "base/tls", "base/version", "coordinator/core", "protocol"}
    ),
    # pactrain-admin: a client, so it knows the wire and nothing of the coordinator's inside.
    # Its doctor also knows all settings, and asks the agent of the node.
    "coordinator/admin": frozenset(
        {
            "base",
            "base/rpc",
            "base/tls",
            "base/version",
            "config",
            "protocol",
            "proto",
            "coordinator/audit",
            "trainer/wire",
        }
    ),
    "coordinator": frozenset(
        {
            "base",
            "base/metrics",
            "base/tls",
            "base/version",
            "config",
            "protocol",
            "proto",
            PROTO_CONVERT,
            "coordinator/core",
            "coordinator/store",
            "coordinator/rpc",
            "coordinator/metrics",
            "coordinator/page",
        }
    ),
    "examples": frozenset({"trainer", "trainer/cpp", "trainer/cpp/libtorch"}),
}

# Whatever lies in these may use anything, and nothing may use it.
TEST_ROOMS = frozenset({"tests", "bench"})

# System libraries (@system//:name, and @torch) that a room may link, also through others.
PURE_LIBRARIES = frozenset({"absl", "xxhash"})
LINKS: dict[str, frozenset[str]] = {
    "base": PURE_LIBRARIES | {"spdlog"},
    "base/tls": PURE_LIBRARIES | {"spdlog", "openssl"},
    "base/fd": frozenset(),
    "base/safe_folders": frozenset(),
    "base/version": frozenset(),
    "base/weakened": frozenset(),
    "protocol": PURE_LIBRARIES,
    "config": PURE_LIBRARIES | {"protobuf", "cli11", "yaml_cpp", "spdlog"},
    "kernels": frozenset(),
    "kernels/cuda": frozenset(),
    "trainer/cuda": frozenset(),
    "trainer/nccl": frozenset(),
    "trainer/wire": frozenset(),
    "trainer/membership_abi": frozenset(),
    "trainer/core": frozenset({"xxhash"}),
    "trainer": frozenset({"xxhash"}),
    "trainer/cpp": frozenset({"xxhash"}),
    "trainer/cpp/libtorch": frozenset({"xxhash", "torch"}),
    "agent/core": PURE_LIBRARIES,
    "coordinator/core": PURE_LIBRARIES,
    "agent/codec": PURE_LIBRARIES,
    "agent/exchange": PURE_LIBRARIES,
}

# The same for #include <...>: prefixes that a room must not open.
FORBIDDEN_INCLUDES: dict[str, tuple[str, ...]] = {
    room: tuple(
        prefix
        for library, prefixes in {
            "absl": ("absl/",),
            "grpc": ("grpc",),
            "protobuf": ("google/protobuf",),
            "prometheus": ("prometheus/",),
            "asio": ("asio",),
            "openssl": ("openssl/",),
            "sqlite": ("sqlite3",),
            "spdlog": ("spdlog/", "fmt/"),
            "torch": ("torch/", "ATen/", "c10/"),
            "yaml_cpp": ("yaml-cpp/",),
            "cuda": ("cuda", "nccl"),
        }.items()
        if library not in links
        for prefix in prefixes
    )
    for room, links in LINKS.items()
}


def room_of(path: str) -> str | None:
    """The room of a file or package path; None for third_party and the like."""
    stem = path.rsplit(".", 1)[0]
    if stem.startswith("protocol/proto_"):
        return PROTO_CONVERT
    parts = stem.split("/")
    if parts[0] in TEST_ROOMS:
        return parts[0]
    for length in range(len(parts), 0, -1):
        name = "/".join(parts[:length])
        if name in ALLOWED:
            return name
    return None
