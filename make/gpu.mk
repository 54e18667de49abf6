# For a machine with a GPU (docs/gpu.md): the kernels' tests as a program that runs on it, and a folder that takes everything there.

# the tests of tests/emulation that use the CUDA run time alone; SHERD_ON_DEVICE leaves out what asks the stand-ins
DEVICE_TEST_SOURCES := $(wildcard tests/emulation/kernels_*_test.cpp tests/emulation/backend_operations_test.cpp \
  tests/emulation/backend_attention_test.cpp)
DEVICE_TEST_OBJECTS := $(patsubst %.cpp,$(OUT)/obj/device/%.o,$(DEVICE_TEST_SOURCES))
DEVICE_TEST_FLAGS    = -std=c++20 -march=$(MARCH) -O2 -g1 -fopenmp -Wall -Wextra -Wno-restrict -Werror -Iinclude -Isrc -Itests/emulation \
  $(LIB_INCLUDES) $(CUDA_CFLAGS) -DSHERD_ON_DEVICE

$(OUT)/obj/device/%.o: %.cpp $(OUT)/flags
	@mkdir -p $(@D)
	$(call run,CXX,$< (device),$(CXX) $(DEVICE_TEST_FLAGS) -MMD -MP -c -o $@ $<)
-include $(DEVICE_TEST_OBJECTS:.o=.d)

$(OUT)/tests/device: $(DEVICE_TEST_OBJECTS) $(call objects,tests/unit/main.cpp) $(OUT)/libsherd.a
	@mkdir -p $(@D)
	$(if $(NVCC),,$(error tests/device needs CUDA: no nvcc in PATH; say CUDA_HOME=PLACE of a CUDA toolkit))
	$(call run,LINK,$@,$(CXX) $(LDFLAGS_ALL) -o $@ $^ $(LIBS_ALL) $(GTEST_LINKS))

.PHONY: gpu-bundle
gpu-bundle:
	@$(PYTHON) tests/gpu/bundle --to $(BUILD)/gpu-bundle

# that they compile for a device is seen wherever the emulation runs them
$(EMU)/device_tests.compile: $(DEVICE_TEST_SOURCES) $(wildcard tests/emulation/*.hpp src/backend/cuda/*.hpp src/backend/cpu/*.hpp include/sherd/*/*.hpp)
	@mkdir -p $(@D)
	$(call run,CXX,device tests,for f in $(DEVICE_TEST_SOURCES); do $(CXX) -fsyntax-only $(EMU_COMMON) -DSHERD_ON_DEVICE $$f || exit 1; done)
	@touch $@
emulation: $(EMU)/device_tests.compile
