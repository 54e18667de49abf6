# make check-cuda12: that the CUDA side compiles with CUDA 12 too (docs/gpu.md): kernels, for sm_70, which CUDA 13 has left behind, and host code
# but for cuDNN's. Where such a compiler cannot be had, a line says so. Headers that PyPI has only beside large libraries are this machine's,
# whichever version they are; where it has none, a line says what was not compiled.

CUDA12 := $(abspath $(BUILD))/cuda12
CUDA12_BORROWED := $(CUDA12)/borrowed
CUDA12_HOST := $(if $(wildcard $(CUDA12_BORROWED)/include/cublasLt.h),$(wildcard src/backend/cuda/*.cpp $(if $(NCCL_HEADER),src/comm/nccl/*.cpp)))

.PHONY: check-cuda12 check-cuda12-objects
check-cuda12:
	@PYTHON=$(PYTHON) scripts/cuda12.sh $(CUDA12)
	@if [ -x $(CUDA12)/bin/nvcc ]; then \
	  scripts/cuda12_borrow.sh $(CUDA12_BORROWED) $(CUDA_HOME) $(NCCL_HOME) && \
	  $(MAKE) --no-print-directory OUT=$(CUDA12) CUDA=1 CUDA_HOME=$(CUDA12) CUDA_ARCHS=70 CUDNN=0 NCCL= NCCL_HOME=$(CUDA12_BORROWED) \
	    OPTIMIZE=-O0 CXXFLAGS='-isystem $(CUDA12_BORROWED)/include -include library_types.h' check-cuda12-objects && \
	  echo "check-cuda12: compiled with $$($(CUDA12)/bin/nvcc --version | sed -n 's/.*release \([0-9.]*\).*/CUDA \1/p'): all kernels, for sm_70" && \
	  cat $(CUDA12_BORROWED)/compiled; fi

# asked for by the recipe above alone, with those variables
check-cuda12-objects: $(CUDA_OBJECTS) $(call objects,$(CUDA12_HOST))
