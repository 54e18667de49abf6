#!/bin/bash
# What host code includes besides CUDA 12's own headers (scripts/cuda12.sh): cuBLASLt's and NCCL's, which PyPI has only beside hundreds of MB of
# libraries. This machine's are taken, of whichever version: copies in a folder of their own, since through links gcc would find their
# neighbours too. library_types.h comes along: cublasLt.h speaks in its types, and of CUDA's run time nothing does.
# usage: scripts/cuda12_borrow.sh FOLDER CUDA_HOME [NCCL_HOME]; FOLDER/include has them, FOLDER/compiled says what compiles with them.
set -euo pipefail
folder=$1 cuda=$2
rm -rf "$folder" && mkdir -p "$folder/include"
exec >"$folder/compiled"

# $(version FILE MACRO...): 13.1.0
version() {
    local file=$1 text=
    shift
    for name; do text+=.$(sed -n "s/^#define $name  *//p" "$file" | head -n 1); done
    echo "${text#.}"
}

if [ ! -e "$cuda/include/cublasLt.h" ]; then
    echo "check-cuda12: no host code, since there is no cublasLt.h in $cuda/include (CUDA_HOME= says where)"
    exit 0
fi
cp "$cuda"/include/{cublasLt,cublas_api,library_types}.h "$folder/include"
echo "check-cuda12: and host code in src/backend/cuda but cudnn/, with cublasLt.h $(version "$cuda/include/cublas_api.h" CUBLAS_VER_{MAJOR,MINOR,PATCH})" \
    "and library_types.h of $cuda"
for place in "${3:-$cuda}" /usr; do
    [ -e "$place/include/nccl.h" ] || continue
    cp "$place/include/nccl.h" "$folder/include"
    echo "check-cuda12: and src/comm/nccl, with nccl.h $(version "$place/include/nccl.h" NCCL_{MAJOR,MINOR,PATCH}) of $place"
    exit 0
done
echo "check-cuda12: not src/comm/nccl, since there is no nccl.h in ${3:-$cuda}/include or /usr/include (NCCL_HOME= says where)"
