"""@torch: libtorch from the torch wheel that Python imports.

Looked for, in this order: the folder TORCH_HOME (with include/ and lib/), then what
.venv/bin/python, then what python3 imports. Without any of them the repository has a
target that is incompatible with every platform, so that `bazel build //...` leaves out
what needs it.
"""

# find_spec: importing torch takes seconds.
_FIND = """
import importlib.util, os
spec = importlib.util.find_spec("torch")
print(os.path.realpath(os.path.dirname(spec.origin)) if spec else "")
"""

_ABSENT = """
load("@rules_cc//cc:defs.bzl", "cc_library")

cc_library(
    name = "torch",
    target_compatible_with = ["@platforms//:incompatible"],
    visibility = ["//visibility:public"],
)
"""

def _imported_by(context, python):
    if not context.path(python).exists:
        return None
    answer = context.execute([python, "-c", _FIND])
    folder = answer.stdout.strip() if answer.return_code == 0 else ""
    return folder or None

def _find(context):
    named = context.os.environ.get("TORCH_HOME")
    if named:
        return named
    venv = context.path(Label("//:WORKSPACE")).dirname.get_child(".venv").get_child("bin").get_child("python")
    found = _imported_by(context, str(venv))
    system = context.which("python3")
    if not found and system:
        found = _imported_by(context, str(system))
    return found

def _torch_repository(context):
    folder = _find(context)
    header = "include/torch/csrc/api/include/torch/torch.h"
    if not folder or not context.path(folder + "/" + header).exists:
        context.file("BUILD", _ABSENT)
        return
    context.symlink(folder + "/include", "include")
    context.template(
        "BUILD",
        Label("//third_party/torch:torch.BUILD"),
        {"TORCH_LIB": folder + "/lib"},
    )

torch_repository = repository_rule(
    implementation = _torch_repository,
    configure = True,
    environ = ["TORCH_HOME"],
    local = True,
)
