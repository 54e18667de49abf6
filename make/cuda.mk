# The CUDA backend and NCCL: whether they are built, where they lie, how kernels are compiled (docs/gpu.md).
#
# CUDA=0 leaves them out, CUDA=1 fails where they are not found; else they are built where nvcc is found. NCCL=0 leaves out NCCL alone.
# cuDNN is built in where its header and that of its frontend are found; CUDNN=0 and CUDNN=1 likewise.
# CUDA_HOME, NCCL_HOME, CUDNN_HOME, CUDNN_FRONTEND_HOME: places. CUDA_ARCHS: what kernels are compiled for; `release` stands for all
# that nvcc knows up to sm_100.

CUDA_ARCHS ?= 75 80 90
comma := ,
ifneq ($(CUDA),0)
  ifeq ($(VARIANT)$(CUDA),sanitize)
    NVCC :=
  else ifdef CUDA_HOME
    NVCC := $(wildcard $(CUDA_HOME)/bin/nvcc)
  else
    NVCC := $(shell command -v nvcc 2>/dev/null)
  endif
endif
ifeq ($(CUDA)$(NVCC),1)
  $(error CUDA=1: no nvcc in $(if $(CUDA_HOME),CUDA_HOME=$(CUDA_HOME)/bin,PATH); say CUDA_HOME=PLACE of a CUDA toolkit, or CUDA=0)
endif

# where cuDNN lies, looked up when asked: make/emulation.mk asks without CUDA=1 too, once it knows CUDA_HOME
CUDNN_PLACES = $(if $(CUDNN_HOME),$(CUDNN_HOME)/include,$(CUDA_HOME)/include /usr/local/include /usr/include /usr/include/x86_64-linux-gnu)
CUDNN_HEADER = $(firstword $(wildcard $(addsuffix /cudnn.h,$(CUDNN_PLACES))))
CUDNN_FRONTEND = $(firstword $(wildcard $(addsuffix /cudnn_frontend.h,$(or $(addsuffix /include,$(CUDNN_FRONTEND_HOME)),$(CUDNN_PLACES)))))
# $(call cudnn_cflags,HEADER of the frontend). gcc 12 sees a vector of -1 elements in the frontend
cudnn_cflags = -Wno-stringop-overflow -isystem $(dir $(1)) $(if $(CUDNN_HOME),$(call home_cflags,$(CUDNN_HOME)))
# newer frontends also compile kernels of their own, which nothing here uses: thus nvrtc
CUDNN_LINKS = $(if $(CUDNN_HOME),$(call home_links,$(CUDNN_HOME))) -lcudnn -Wl$(comma)--push-state$(comma)--as-needed -lnvrtc -Wl$(comma)--pop-state

ifneq ($(NVCC),)
  ifeq ($(CUDA_ARCHS),release)
    override CUDA_ARCHS := $(shell $(NVCC) --list-gpu-arch | sed -n 's/compute_//p' | sort -n | awk '$$1 <= 100')
  endif
  CUDA_HOME ?= $(patsubst %/,%,$(dir $(patsubst %/,%,$(dir $(NVCC)))))
  NCCL_HEADER := $(firstword $(wildcard $(if $(NCCL_HOME),$(NCCL_HOME)/include/nccl.h,$(CUDA_HOME)/include/nccl.h /usr/include/nccl.h)))
  ifeq ($(NCCL),0)
    NCCL_HEADER :=
  endif
  ifeq ($(NCCL)$(NCCL_HEADER),1)
    $(error NCCL=1: no nccl.h in $(or $(NCCL_HOME),$(CUDA_HOME) or /usr)/include; say NCCL_HOME=PLACE, or NCCL=0)
  endif
  ifneq ($(CUDNN),0)
    HAS_CUDNN := $(and $(CUDNN_HEADER),$(CUDNN_FRONTEND))
  endif
  ifeq ($(CUDNN)$(HAS_CUDNN),1)
    $(error CUDNN=1: no $(if $(CUDNN_HEADER),cudnn_frontend.h; say CUDNN_FRONTEND_HOME,cudnn.h; say CUDNN_HOME)=PLACE of a folder that has it in include, or CUDNN=0)
  endif
  CUDA_CFLAGS := -isystem $(CUDA_HOME)/include $(if $(NCCL_HOME),$(call home_cflags,$(NCCL_HOME))) -DSHERD_CUDA_ARCHS='"$(strip $(CUDA_ARCHS))"'
  CUDA_LINKS := $(call home_links,$(CUDA_HOME)) -lcublasLt -lcudart $(if $(NCCL_HEADER),$(if $(NCCL_HOME),$(call home_links,$(NCCL_HOME))) -lnccl) \
    $(if $(HAS_CUDNN),$(CUDNN_LINKS))
  CUDA_SOURCES := $(wildcard src/backend/cuda/*.cu)
endif

# one of each pair is compiled
ABSENT_SOURCES := $(if $(NVCC),src/backend/cuda_absent.cpp,src/backend/cuda/%) $(if $(HAS_CUDNN),src/backend/cuda/cudnn_absent.cpp,src/backend/cuda/cudnn/%) \
  $(if $(NCCL_HEADER),src/comm/nccl_absent.cpp,src/comm/nccl/%)

# machine code for every architecture, and PTX of the last, which drivers compile for what comes after it
last_arch = $(lastword $(CUDA_ARCHS))
GENCODE = $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) -gencode arch=compute_$(last_arch),code=compute_$(last_arch)
NVCCFLAGS_ALL = -std=c++20 -O3 -ccbin $(CXX) $(GENCODE) -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror \
  -Iinclude -Isrc $(FMT_CFLAGS) $(NVCCFLAGS)

# host code of the GPU side sees the vendors' headers; the rest of the program cannot
$(OUT)/obj/src/backend/cuda/%.o $(OUT)/obj/src/comm/nccl/%.o: FILE_FLAGS = $(CUDA_CFLAGS)
$(OUT)/obj/src/backend/cuda/cudnn/%.o: FILE_FLAGS = $(CUDA_CFLAGS) $(call cudnn_cflags,$(CUDNN_FRONTEND))

$(OUT)/obj/%.cu.o: %.cu $(OUT)/nvcc-flags
	@mkdir -p $(@D)
	$(call run,NVCC,$<,$(NVCC) $(NVCCFLAGS_ALL) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<)
CUDA_OBJECTS = $(patsubst %.cu,$(OUT)/obj/%.cu.o,$(CUDA_SOURCES))
-include $(CUDA_OBJECTS:.o=.d)

$(OUT)/nvcc-flags: FORCE
	@mkdir -p $(@D)
	@echo '$(NVCC) $(NVCCFLAGS_ALL)' | cmp -s - $@ || echo '$(NVCC) $(NVCCFLAGS_ALL)' > $@
