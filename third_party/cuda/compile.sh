#!/bin/bash
# compile.sh NVCC.TXT SOURCE HEADER FATBIN PTX LOG ARCHITECTURE...
#
# NVCC.TXT is @cuda's; beside it lies the link to the CUDA folder, if there is one.
set -euo pipefail
nvcc_text=$1 source=$2 header=$3 fatbin=$4 ptx=$5 log=$6
architectures=("${@:7}")
home=$(dirname "$nvcc_text")/home

if [ ! -e "$home" ]; then
  { echo "// $(cat "$nvcc_text")"; echo "#pragma once"; } >"$header"
  : >"$fatbin"
  : >"$ptx"
  : >"$log"
  exit
fi

# No fma, whole subnormals, IEEE division: as the CPU computes. Messages name no folder of
# this machine.
flags=(-std=c++20 -O3 -fmad=false -ftz=false -prec-div=true -prec-sqrt=true
  -Werror all-warnings -Xptxas=-v,-warn-spills,-warn-lmem-usage -I .)
lowest=${architectures[0]}
targets=(-gencode "arch=compute_$lowest,code=compute_$lowest")
for architecture in "${architectures[@]}"; do
  targets+=(-gencode "arch=compute_$architecture,code=sm_$architecture")
done
"$home/bin/nvcc" -fatbin --compress-mode=size "${flags[@]}" "${targets[@]}" \
  -o "$fatbin" "$source" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
"$home/bin/nvcc" -ptx "${flags[@]}" "-arch=compute_$lowest" -o "$ptx" "$source"

release=$(sed -n 's/.*release \([0-9]*\)\.\([0-9]*\),.*/\1 \2/p' "$nvcc_text")
{
  echo "// Made by third_party/cuda/compile.sh."
  echo "#pragma once"
  echo "#define PACTRAIN_CUDA_VERSION $((${release% *} * 1000 + ${release#* } * 10))"
  echo "#define PACTRAIN_CUDA_ARCHITECTURES $(IFS=,; echo "${architectures[*]}")"
  echo "#define PACTRAIN_CUDA_PTX $lowest"
  # Aligned: the driver reads headers in place.
  echo "alignas(16) inline constexpr unsigned char kKernelsCode[] = {"
  od -An -v -tu1 -w16 "$fatbin" | sed 's/ *\([0-9][0-9]*\)/\1,/g'
  echo "};"
} >"$header"
