"""Compiles CUDA kernels into a header that brings them along."""

# SASS for these; PTX of the first one for newer ones.
ARCHITECTURES = [
    "80",
    "86",
    "89",
    "90",
    "100",
    "120",
]

def cuda_kernels(name, src, hdrs):
    """NAME_code.h, NAME.fatbin, NAME.ptx, and NAME.log (what ptxas says of each kernel).

    Without nvcc the header defines no PACTRAIN_CUDA_VERSION, and the others are empty.
    """
    outs = [name + end for end in ("_code.h", ".fatbin", ".ptx", ".log")]
    native.genrule(
        name = name,
        srcs = [src] + hdrs + ["@cuda//:nvcc.txt"],
        outs = outs,
        cmd = " ".join(
            ["$(location //third_party/cuda:compile.sh)", "$(location @cuda//:nvcc.txt)", "$(location %s)" % src] +
            ["$(location %s)" % out for out in outs] +
            ARCHITECTURES,
        ),
        message = "Compiling CUDA kernels of",
        tools = ["//third_party/cuda:compile.sh"],
    )
