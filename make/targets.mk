# What a user calls besides the build itself. Recipes that build call make again, because the places of libraries are looked up when make
# starts, and `deps` may only just have installed them.

.PHONY: help test test-full test-emulation test-cluster demo demo-smollm2 bench clean install
help:
	@echo 'make [-j2] [CUDA=0]      build/sherd and build/tools/, with CUDA where nvcc is found (docs/build.md: places of libraries, MARCH=, VARIANT=sanitize)'
	@echo 'make deps                install the Debian packages that are missing, as root'
	@echo 'make demo                fine-tune the small model in inputs/ on two ranks'
	@echo 'make demo-smollm2        fine-tune a chat model of 135M parameters, ask it before and after (Python packages: 5.7 GB)'
	@echo 'make test                all tests; the last line counts them. make test-full: longer ones, and PyTorch (5.7 GB) to compare with'
	@echo 'make bench               tokens a second and memory; TORCH_PYTHON=PYTHON measures PyTorch beside it'
	@echo 'make lint | format       clang-format and clang-tidy | clang-format in place'
	@echo 'make test-emulation      the CUDA side without a GPU: kernels and host code on the CPU'
	@echo 'make check-cuda12        compile kernels, for sm_70, and host code with CUDA 12 too; the compiler is fetched (110 MB)'
	@echo 'make gpu-bundle          a folder that checks and measures everything on a machine with a GPU (docs/gpu.md)'
	@echo 'make sanitize            unit tests under AddressSanitizer and UndefinedBehaviorSanitizer'
	@echo 'make install PREFIX=     bin/sherd below PREFIX (/usr/local), DESTDIR= before it'
	@echo 'make clean               remove build/'

test: deps
	@$(MAKE) --no-print-directory all tests $(TOKENIZE_VENVS)
	@SHERD_BUILD=$(BUILD) $(PYTHON) tests/run.py

test-full: deps
	@$(MAKE) --no-print-directory all tests $(TOKENIZE_VENVS) $(TORCH_VENV)
	@SHERD_BUILD=$(BUILD) $(PYTHON) tests/run.py --full

test-cluster:
	@echo 'test-cluster: skipped, there is no virtual cluster in this version'

demo: deps
	@$(MAKE) --no-print-directory all
	@SHERD_BUILD=$(BUILD) scripts/demo.sh

demo-smollm2: deps
	@$(MAKE) --no-print-directory all $(TORCH_VENV)
	@SHERD_BUILD=$(BUILD) scripts/demo_smollm2.sh

bench: all
	@SHERD_BUILD=$(BUILD) $(PYTHON) benchmarks/run.py $(BENCH)

PREFIX ?= /usr/local
install: all
	install -D $(BUILD)/sherd $(DESTDIR)$(PREFIX)/bin/sherd

clean:
	rm -rf $(BUILD)
