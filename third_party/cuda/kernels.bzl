"""Compiles CUDA kernels into a header that brings them along."""

# Machine code for these; PTX of the first one for newer ones.
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
    compiled = ["by_nvcc/" + out for out in outs]
    native.genrule(
        name = name + "_by_nvcc",
        srcs = [src] + hdrs + ["@cuda//:nvcc.txt"],
        outs = compiled,
        cmd = " ".join(
            ["$(location //third_party/cuda:compile.sh)", "$(location @cuda//:nvcc.txt)", "$(location %s)" % src] +
            ["$(location %s)" % out for out in compiled] +
            ARCHITECTURES,
        ),
        message = "Compiling CUDA kernels of",
        tools = ["//third_party/cuda:compile.sh"],
    )

    # As tools they are compiled once, and not again for each configuration (sanitizers, clang).
    native.genrule(
        name = name,
        outs = outs,
        cmd = " && ".join(["cp $(location %s) $(location %s)" % pair for pair in zip(compiled, outs)]),
        tools = compiled,
    )
