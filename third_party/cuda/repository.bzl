"""@cuda: the nvcc that compiles kernels/cuda.

Looked for, in this order: CUDA_HOME, .cuda (`tools/setup cuda` installs it there), PATH.
Without one of at least MIN_CUDA the repository says so in nvcc.txt, and the kernels become
an empty stub, with which everything else builds.
"""

MIN_CUDA = (13, 0)

_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")

exports_files(["nvcc.txt"])

# The driver's header, for tests that hold ours to it; nothing without nvcc.
cc_library(
    name = "headers",
    hdrs = glob(["home/include/cuda.h"]),
    includes = ["home/include"],
    visibility = ["//visibility:public"],
)
"""

def _release(context, nvcc):
    """What `nvcc --version` says, and the two numbers of its release; None without any."""
    if not context.path(nvcc).exists:
        return None
    said = context.execute([nvcc, "--version"])
    words = said.stdout.partition("release ")[2].partition(",")[0].split(".")
    if said.return_code != 0 or len(words) != 2 or not (words[0].isdigit() and words[1].isdigit()):
        return None
    return said.stdout, (int(words[0]), int(words[1]))

def _candidates(context):
    root = context.path(Label("//:WORKSPACE")).dirname
    named = context.os.environ.get("CUDA_HOME")
    found = [(named, "CUDA_HOME")] if named else []
    found.append((str(root.get_child(".cuda").get_child("nvidia").get_child("cu13")), ".cuda"))
    on_path = context.which("nvcc")
    if on_path:
        found.append((str(on_path.realpath.dirname.dirname), "PATH"))
    return found

def _cuda_repository(context):
    reasons = []
    context.file("BUILD", _BUILD)
    for home, source in _candidates(context):
        release = _release(context, home + "/bin/nvcc")
        if release and release[1] >= MIN_CUDA:
            # Actions run it by this name, so that their results are the same in all clones.
            context.symlink(home, "home")
            context.file("nvcc.txt", release[0])
            return
        reasons.append("%s: %s" % (source, "has %d.%d" % release[1] if release else "has none"))
    context.file("nvcc.txt", "none: no nvcc of CUDA %d.%d or newer (%s)\n" % (MIN_CUDA + ("; ".join(reasons),)))

cuda_repository = repository_rule(
    implementation = _cuda_repository,
    configure = True,
    environ = [
        "CUDA_HOME",
        "PATH",
    ],
    local = True,
)
