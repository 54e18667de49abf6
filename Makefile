# sherd: one MPI binary. `make help` lists the targets; docs/build.md explains builds without root.
#
# Non-recursive. Everything made lies under build/; headers are tracked automatically (-MMD).

.DEFAULT_GOAL := all
BUILD    ?= build
VARIANT  ?= release
CXX      ?= g++
MARCH    ?= x86-64-v3
PYTHON   ?= /usr/bin/python3

# what is done, in one line a file; V=1 shows whole commands
run = $(if $(V),$(3),@echo '  $(1) $(2)'; $(3))

include make/libraries.mk
include make/deps.mk

# -Wno-restrict: false in gcc 12 on every sum of strings (GCC bug 105329)
WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-qual -Wundef -Wno-restrict -Werror
# never -ffast-math: it breaks NaN checks and rounding (docs/performance.md)
MATH     := -fno-math-errno -fno-trapping-math -fopenmp
ifeq ($(VARIANT),sanitize)
  OUT      := $(BUILD)/sanitize
  OPTIMIZE := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined
else
  OUT      := $(BUILD)
  OPTIMIZE := -O3 -g1
endif
VERSION  := $(shell cat VERSION)
CXXFLAGS_ALL = -std=c++20 -march=$(MARCH) $(OPTIMIZE) $(MATH) $(WARNINGS) -Iinclude -Isrc $(LIB_INCLUDES) -DSHERD_VERSION='"$(VERSION)"' $(CXXFLAGS)
FILE_FLAGS   =
LDFLAGS_ALL  = $(OPTIMIZE) -fopenmp $(LDFLAGS)
LIBS_ALL     = $(LIB_LINKS) $(CUDA_LINKS) $(LDLIBS)

include make/cuda.mk

LIBRARY_SOURCES := $(filter-out src/app/main.cpp src/tools/% $(ABSENT_SOURCES),$(wildcard src/*/*.cpp src/*/*/*.cpp src/*/*/*/*.cpp))
TOOL_SOURCES    := $(wildcard src/tools/*.cpp)
UNIT_SOURCES    := $(wildcard tests/unit/*.cpp)
DIST_SOURCES    := $(wildcard tests/distributed/*.cpp)
objects = $(patsubst %.cpp,$(OUT)/obj/%.o,$(1))
ALL_OBJECTS := $(call objects,$(LIBRARY_SOURCES) src/app/main.cpp $(TOOL_SOURCES) $(UNIT_SOURCES) $(DIST_SOURCES))
TOOLS := $(patsubst src/tools/%.cpp,$(OUT)/tools/%,$(TOOL_SOURCES))

.PHONY: all tools tests
all: $(OUT)/sherd tools
tools: $(TOOLS)
tests: $(OUT)/tests/unit $(OUT)/tests/distributed

$(OUT)/libsherd.a: $(call objects,$(LIBRARY_SOURCES)) $(CUDA_OBJECTS)
	@mkdir -p $(@D)
	@rm -f $@
	$(call run,AR,$@,ar rcs $@ $^)

$(OUT)/sherd: $(call objects,src/app/main.cpp) $(OUT)/libsherd.a
	$(call run,LINK,$@,$(CXX) $(LDFLAGS_ALL) -o $@ $^ $(LIBS_ALL))

$(OUT)/tools/%: $(OUT)/obj/src/tools/%.o $(OUT)/libsherd.a
	@mkdir -p $(@D)
	$(call run,LINK,$@,$(CXX) $(LDFLAGS_ALL) -o $@ $^ $(LIBS_ALL))

$(OUT)/tests/unit: $(call objects,$(UNIT_SOURCES)) $(OUT)/libsherd.a
	@mkdir -p $(@D)
	$(call run,LINK,$@,$(CXX) $(LDFLAGS_ALL) -o $@ $^ $(LIBS_ALL) $(GTEST_LINKS))

$(OUT)/tests/distributed: $(call objects,$(DIST_SOURCES)) $(OUT)/libsherd.a
	@mkdir -p $(@D)
	$(call run,LINK,$@,$(CXX) $(LDFLAGS_ALL) -o $@ $^ $(LIBS_ALL) $(GTEST_LINKS))

$(OUT)/obj/%.o: %.cpp $(OUT)/flags
	@mkdir -p $(@D)
	$(call run,CXX,$<,$(CXX) $(CXXFLAGS_ALL) $(FILE_FLAGS) -MMD -MP -c -o $@ $<)

# rebuilt only when the flags change, so that another MARCH or library place never mixes with old objects
$(OUT)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CXX) $(subst ','\'',$(CXXFLAGS_ALL)) $(subst ','\'',$(CUDA_CFLAGS)) | $(subst ','\'',$(LDFLAGS_ALL) $(LIBS_ALL))' | cmp -s - $@ || echo '$(CXX) $(subst ','\'',$(CXXFLAGS_ALL)) $(subst ','\'',$(CUDA_CFLAGS)) | $(subst ','\'',$(LDFLAGS_ALL) $(LIBS_ALL))' > $@
FORCE:

# only these: make treats a missing secondary file as made where what it goes into is newer than its source
.SECONDARY: $(call objects,$(TOOL_SOURCES))
-include $(ALL_OBJECTS:.o=.d)

include make/targets.mk
include make/emulation.mk
include make/cuda12.mk
include make/gpu.mk
include make/checks.mk
