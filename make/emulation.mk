# make test-emulation: the CUDA side on machines without a GPU. Kernels run thread by thread on the CPU, host code against stand-ins of the
# CUDA runtime, cuBLASLt, cuDNN and NCCL; tests/emulation/harness/README.md tells what they see. Builds below build/emulation:
#   checked  kernels compiled so that every access reaches harness/access_check.cpp: races, bounds, what was never written
#   asan     kernels, host code and harness under AddressSanitizer and UndefinedBehaviorSanitizer
#   plain    kernels optimized, for whole training runs
# Host code and tests are compiled once for checked and plain (host). The rest of the library is the normal build's. Where nvcc is found,
# the program is also linked as users get it, with real libraries instead of stand-ins: nvcc, and nvcc-cudnn with cuDNN (cudnn).

CUDA_HOME ?= $(or $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v nvcc 2>/dev/null))),/usr/local/cuda)
NCCL_HOME ?=
EMU := $(BUILD)/emulation
EMU_HARNESS := tests/emulation/harness

EMU_INCLUDES := -Iinclude -Isrc -Itests/emulation $(LIB_INCLUDES) -isystem $(CUDA_HOME)/include $(if $(NCCL_HOME),-isystem $(NCCL_HOME)/include) -DSHERD_CUDA_ARCHS='"$(strip $(CUDA_ARCHS))"'
EMU_REAL     := -std=c++20 -fno-strict-aliasing -march=$(MARCH) -fopenmp -Wall -Wextra -Wno-restrict -Werror -DSHERD_VERSION='"$(VERSION)"' $(EMU_INCLUDES)
# a stand-in for cuDNN's headers comes before theirs
EMU_COMMON   := $(EMU_REAL) -I$(EMU_HARNESS)/fake_cudnn
# memory is read through uint4*, and behind opaque handles, which nvcc allows and ISO C++ does not; `#pragma unroll` is nvcc's
EMU_CU       := -x c++ $(EMU_COMMON) -Wno-unknown-pragmas
EMU_HOST     := $(EMU_COMMON) -O1 -g1
# the compiler's calls of the thread sanitizer are answered by harness/access_check.cpp: no sanitizer library is linked
EMU_CHECK    := -O1 -g -fsanitize=thread,bounds,alignment --param tsan-instrument-func-entry-exit=0
EMU_ASAN     := -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all
EMU_PLAIN    := -O2 -g1

EMU_KERNELS       := $(wildcard src/backend/cuda/*.cu)
EMU_KERNEL_HOST   := src/backend/cuda/check.cpp src/backend/cuda/launch.cpp
EMU_CUDNN_CODE    := $(wildcard src/backend/cuda/cudnn/*.cpp)
EMU_NVCC_CODE     := $(filter-out %/cudnn_absent.cpp,$(wildcard src/backend/cuda/*.cpp src/comm/nccl/*.cpp))
EMU_HOST_CODE     := $(EMU_NVCC_CODE) $(EMU_CUDNN_CODE)
EMU_RUNTIME       := $(filter-out %/access_check.cpp %/fake_nvml.cpp,$(wildcard $(EMU_HARNESS)/*.cpp))
EMU_ALL_TESTS     := $(wildcard tests/emulation/*_test.cpp tests/emulation/*_test.cu)
EMU_KERNEL_TESTS  := $(filter tests/emulation/kernels_%,$(EMU_ALL_TESTS))
EMU_BACKEND_TESTS := $(filter tests/emulation/backend_%,$(EMU_ALL_TESTS))
EMU_OWN_TESTS     := $(filter-out $(EMU_KERNEL_TESTS) $(EMU_BACKEND_TESTS),$(EMU_ALL_TESTS)) tests/emulation/faulty_kernels.cu tests/emulation/runtime_kernels.cu
EMU_MAIN          := tests/emulation/main.cpp
# the library but for the GPU's rooms and what stands in their place without CUDA
EMU_LIBRARY       := $(call objects,$(filter-out src/backend/cuda/% src/backend/cuda_absent.cpp src/comm/nccl/% src/comm/nccl_absent.cpp,$(LIBRARY_SOURCES)))

# $(call emu_objects,BUILD,sources): kernels in that build, everything else in `host` or `asan`
emu_host    = $(if $(filter asan,$(1)),asan,host)
emu_objects = $(patsubst %,$(EMU)/$(1)/%.o,$(filter %.cu,$(2))) $(patsubst %,$(EMU)/$(call emu_host,$(1))/%.o,$(filter %.cpp,$(2)))
emu_harness = $(call emu_objects,$(1),$(EMU_RUNTIME)) $(if $(filter checked,$(1)),$(EMU)/host/$(EMU_HARNESS)/access_check.cpp.o)
EMU_LINKS   = -fopenmp $(LIB_LINKS) $(LDLIBS) -lboost_context -lrt -pthread

# $(call emu_compile,target pattern,source pattern,flags)
define emu_compile
$(1): $(2) $(EMU)/flags
	@mkdir -p $$(@D)
	$$(call run,CXX,$$< ($$(word 3,$$(subst /, ,$$@))),$$(CXX) $(3) -MMD -MP -c $$< -o $$@)
endef
$(eval $(call emu_compile,$(EMU)/checked/%.cu.o,%.cu,$$(EMU_CU) $$(EMU_CHECK)))
$(eval $(call emu_compile,$(EMU)/asan/%.cu.o,%.cu,$$(EMU_CU) $$(EMU_ASAN)))
$(eval $(call emu_compile,$(EMU)/plain/%.cu.o,%.cu,$$(EMU_CU) $$(EMU_PLAIN)))
$(eval $(call emu_compile,$(EMU)/asan/%.cpp.o,%.cpp,$$(EMU_COMMON) $$(EMU_ASAN)))
# the harness is on the path of every access and of every element of a product
$(eval $(call emu_compile,$(EMU)/host/$(EMU_HARNESS)/%.cpp.o,$(EMU_HARNESS)/%.cpp,$$(EMU_COMMON) -O3 -g1))
$(eval $(call emu_compile,$(EMU)/host/%.cpp.o,%.cpp,$$(EMU_HOST)))

$(EMU)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CXX) $(subst ','\'',$(EMU_CU) $(EMU_CHECK) $(EMU_ASAN) $(EMU_PLAIN) $(EMU_HOST))' | cmp -s - $@ || echo '$(CXX) $(subst ','\'',$(EMU_CU) $(EMU_CHECK) $(EMU_ASAN) $(EMU_PLAIN) $(EMU_HOST))' > $@

$(EMU)/libcommon.a: $(EMU_LIBRARY)
	@mkdir -p $(@D)
	@rm -f $@
	$(call run,AR,$@,ar rcs $@ $^)

# $(call emu_program,BUILD,name,sources): objects in that order, harness, library
define emu_program
$(EMU)/$(1)/$(2): $(call emu_objects,$(1),$(3)) $(call emu_harness,$(1)) $(EMU)/libcommon.a
	$$(call run,LINK,$$@,$(CXX) $(if $(filter asan,$(1)),$$(EMU_ASAN)) -o $$@ $$^ $(EMU_LINKS) $(GTEST_LINKS))
-include $(patsubst %.o,%.d,$(call emu_objects,$(1),$(3)) $(call emu_harness,$(1)))
endef
$(foreach b,checked asan,$(eval $(call emu_program,$(b),own,$(EMU_MAIN) $(EMU_OWN_TESTS) $(EMU_KERNEL_HOST))))
$(foreach b,checked asan,$(eval $(call emu_program,$(b),kernels,$(EMU_MAIN) $(EMU_KERNEL_TESTS) $(EMU_KERNELS) $(EMU_KERNEL_HOST))))
$(foreach b,checked asan,$(eval $(call emu_program,$(b),backend,$(EMU_MAIN) $(EMU_BACKEND_TESTS) $(EMU_HOST_CODE) $(EMU_KERNELS))))
$(foreach b,plain checked,$(eval $(call emu_program,$(b),sherd,src/app/main.cpp $(EMU_HOST_CODE) $(EMU_KERNELS))))

# the library that the program opens at run time to ask a GPU how it is
$(EMU)/libfake_nvml.so: $(EMU_HARNESS)/fake_nvml.cpp $(EMU)/flags
	$(call run,LINK,$@,$(CXX) $(EMU_COMMON) -O1 -shared -fPIC -o $@ $<)

# the program as nvcc and the real libraries make it, for every architecture, without cuDNN and with it: it must compile and link, and run on
# CPUs without a driver
EMU_NVCC := $(wildcard $(CUDA_HOME)/bin/nvcc)
EMU_DEVICE_CODE := $(patsubst %.cu,$(OUT)/obj/%.cu.o,$(EMU_KERNELS))
-include $(EMU_DEVICE_CODE:.o=.d)
EMU_CUDA_LINKS := $(foreach d,$(CUDA_HOME) $(NCCL_HOME),$(call home_links,$(d))) -lcublasLt -lcudart -lnccl
$(EMU)/nvcc/sherd $(EMU)/nvcc-cudnn/sherd: NVCC := $(EMU_NVCC)
$(EMU)/nvcc/sherd: $(call emu_objects,plain,src/app/main.cpp $(EMU_NVCC_CODE) src/backend/cuda/cudnn_absent.cpp) $(EMU_DEVICE_CODE) $(EMU)/libcommon.a
	@mkdir -p $(@D)
	$(call run,LINK,$@,$(CXX) -o $@ $^ $(EMU_LINKS) $(EMU_CUDA_LINKS))

# The real cuDNN, where its header and library are found, also under CUDA=0. Its frontend, headers alone, is PyPI's where the machine has
# none: then it lies below build/ when make is called again.
EMU_CUDNN_LIBRARY := $(firstword $(wildcard $(foreach d,$(or $(CUDNN_HOME),$(CUDA_HOME) /usr/local /usr),$(addprefix $(d)/,lib64/libcudnn.so lib/libcudnn.so lib/x86_64-linux-gnu/libcudnn.so))))
EMU_CUDNN_MISSING := $(strip $(if $(CUDNN_HEADER),,cudnn.h) $(if $(EMU_CUDNN_LIBRARY),,libcudnn.so))
EMU_WANTS_CUDNN := $(if $(EMU_CUDNN_MISSING)$(filter 0,$(CUDNN)),,yes)
EMU_FETCHED := $(if $(CUDNN_FRONTEND),,$(EMU)/cudnn-frontend)
EMU_FRONTEND := $(or $(CUDNN_FRONTEND),$(wildcard $(EMU_FETCHED)/include/cudnn_frontend.h))
EMU_HAS_CUDNN := $(and $(EMU_WANTS_CUDNN),$(EMU_FRONTEND))

# the frontend's templates cost most of the time: no optimizing
EMU_CUDNN := $(EMU_REAL) -O0 -g1 $(call cudnn_cflags,$(EMU_FRONTEND))
$(EMU)/cudnn/%.cpp.o: %.cpp $(EMU)/cudnn/flags
	@mkdir -p $(@D)
	$(call run,CXX,$< (cudnn),$(CXX) $(EMU_CUDNN) -MMD -MP -c $< -o $@)
# $(call emu_cudnn_objects,sources): compiled with the real headers
emu_cudnn_objects = $(patsubst %,$(EMU)/cudnn/%.o,$(1))
$(EMU)/cudnn/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CXX) $(subst ','\'',$(EMU_CUDNN))' | cmp -s - $@ || echo '$(CXX) $(subst ','\'',$(EMU_CUDNN))' > $@
-include $(patsubst %.o,%.d,$(call emu_cudnn_objects,$(EMU_CUDNN_CODE) tests/emulation/cudnn_plans.cpp))

$(EMU)/nvcc-cudnn/sherd: $(call emu_objects,plain,src/app/main.cpp $(EMU_NVCC_CODE)) $(call emu_cudnn_objects,$(EMU_CUDNN_CODE)) $(EMU_DEVICE_CODE) $(EMU)/libcommon.a
	@mkdir -p $(@D)
	$(call run,LINK,$@,$(CXX) -o $@ $^ $(EMU_LINKS) $(EMU_CUDA_LINKS) $(CUDNN_LINKS))

# cuDNN plans for GPUs that are not there, with a driver's library that says that all went well
EMU_STUB := $(firstword $(wildcard $(CUDA_HOME)/lib64/stubs/libcuda.so $(CUDA_HOME)/lib/stubs/libcuda.so))
$(EMU)/cudnn/plans: $(call emu_cudnn_objects,tests/emulation/cudnn_plans.cpp src/backend/cuda/cudnn/graph.cpp src/backend/cuda/cudnn/plans.cpp) $(EMU)/libcommon.a
	$(call run,LINK,$@,$(CXX) -o $@ $^ $(EMU_LINKS) $(EMU_CUDA_LINKS) $(CUDNN_LINKS))
$(EMU)/cudnn/libcuda.so.1: $(EMU_HARNESS)/fake_libcuda.py $(EMU_STUB)
	@mkdir -p $(@D)
	$(call run,LINK,$@,$(PYTHON) $< $(EMU_STUB) | $(CC) -w -x c -shared -fPIC -o $@ - -ldl)

# what is there to run: a room without tests or sources has no program
EMU_PROGRAMS := $(foreach b,checked asan,$(EMU)/$(b)/own $(if $(EMU_KERNEL_TESTS),$(EMU)/$(b)/kernels) $(if $(EMU_BACKEND_TESTS),$(EMU)/$(b)/backend)) \
  $(if $(EMU_HOST_CODE),$(EMU)/plain/sherd $(EMU)/checked/sherd $(if $(EMU_NVCC),$(EMU)/nvcc/sherd)) $(EMU)/libfake_nvml.so \
  $(if $(EMU_HAS_CUDNN),$(if $(EMU_NVCC),$(EMU)/nvcc-cudnn/sherd) $(if $(EMU_STUB),$(EMU)/cudnn/plans $(EMU)/cudnn/libcuda.so.1))

.PHONY: emulation test-emulation deps-emulation
emulation: $(EMU_PROGRAMS)

EMU_MISSING := $(strip $(foreach h,cuda_runtime.h cublasLt.h nccl.h,$(if $(wildcard $(CUDA_HOME)/include/$(h) $(NCCL_HOME)/include/$(h) /usr/include/$(h)),,$(h))))
ifneq ($(EMU_MISSING),)
test-emulation:
	@echo 'test-emulation: skipped, not in $(CUDA_HOME)/include: $(EMU_MISSING) (CUDA_HOME= and NCCL_HOME= say where)'
else
deps-emulation:
	@scripts/deps.sh $(DEBIAN_PACKAGES) libboost-context-dev binutils
	@$(if $(EMU_WANTS_CUDNN),$(if $(EMU_FETCHED),PYTHON=$(PYTHON) scripts/cudnn_frontend.sh $(EMU_FETCHED)))
test-emulation: deps-emulation
	@$(if $(EMU_NVCC),,echo 'test-emulation: no nvcc in $(CUDA_HOME)/bin: kernels are compiled for the CPU only')
	@$(if $(EMU_CUDNN_MISSING),echo 'test-emulation: not in $(or $(CUDNN_HOME),$(CUDA_HOME)): $(EMU_CUDNN_MISSING) (CUDNN_HOME= says where): only a stand-in for cuDNN is tried')
	@$(MAKE) --no-print-directory emulation
	@SHERD_BUILD=$(BUILD) $(PYTHON) tests/run.py --emulation
endif
