#!/bin/bash
# Puts together a CUDA 12.4 compiler in a folder, without installing anything: NVIDIA's programs from Debian 13's archive (non-free), headers
# from PyPI, where nvcc itself is not. For `make check-cuda12`: sm_70, and users who have CUDA 12. Where one of them cannot be had it says so
# in one line, which is no error. usage: scripts/cuda12.sh FOLDER; the result is FOLDER/bin/nvcc.
set -uo pipefail
mkdir -p "$1" && cd "$1" || exit 1
[ -x bin/nvcc ] && [ -e include/nvtx3 ] && exit 0
PYTHON=${PYTHON:-/usr/bin/python3}

without() {
    echo "check-cuda12: skipped, $1 ($PWD/log)"
    exit 0
}

# an apt of its own, which asks the machine's mirror: nothing of the machine's sources and lists is changed
mirror=$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep -m 1 '/debian/*$') || without "apt knows no mirror of Debian"
mkdir -p apt/lists/partial apt/cache/archives/partial
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie non-free" >apt/sources.list
cat >apt/apt.conf <<END
Dir::Etc::sourcelist "$PWD/apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "$PWD/apt/lists";
Dir::Cache "$PWD/apt/cache";
APT::Sandbox::User "root";
END
export APT_CONFIG=$PWD/apt/apt.conf
{ apt-get update -qq && apt-get download -qq nvidia-cuda-toolkit && dpkg-deb -x nvidia-cuda-toolkit_12.*.deb deb; } >log 2>&1 ||
    without "Debian's nvidia-cuda-toolkit 12 cannot be had"
{ "$PYTHON" -m venv venv && venv/bin/python -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 15 --no-deps --target wheels \
    nvidia-cuda-runtime-cu12==12.4.127 nvidia-cuda-nvcc-cu12==12.4.131 nvidia-cuda-cccl-cu12==12.9.27 \
    nvidia-nvtx-cu12==12.4.127; } >>log 2>&1 ||
    without "PyPI's headers of CUDA 12 cannot be had"

# the layout that nvcc expects. Only programs are taken: the package's nvcc.profile is a link to a file in /etc
mkdir -p include nvvm/bin programs
cp -r wheels/nvidia/{cuda_runtime,cuda_nvcc,cuda_cccl,nvtx}/include/. include &&
    cp -r wheels/nvidia/cuda_nvcc/nvvm/libdevice nvvm &&
    cp deb/usr/lib/nvidia-cuda-toolkit/bin/cicc nvvm/bin &&
    cp -r deb/usr/lib/nvidia-cuda-toolkit/bin/{nvcc,crt} deb/usr/bin/{cudafe++,ptxas,fatbinary,nvlink} programs >>log 2>&1 ||
    without "Debian's nvidia-cuda-toolkit 12 is not laid out as expected"
cat >programs/nvcc.profile <<'END'
TOP              = $(_HERE_)/..
CICC_PATH        = $(TOP)/nvvm/bin
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH            += $(CICC_PATH):$(_HERE_):
INCLUDES        += "-I$(TOP)/include" $(_SPACE_)
END
rm -rf bin deb wheels venv apt ./*.deb
mv programs bin
