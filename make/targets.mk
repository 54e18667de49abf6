# What a user calls besides the build itself.

.PHONY: help clean format lint sanitize install
help:
	@echo 'make [CUDA=0] | deps | demo | test | bench | lint | format | sanitize | install PREFIX=/usr/local | clean   (docs/build.md)'

clean:
	rm -rf $(BUILD)

FORMATTED := $(shell git ls-files 'include/*.hpp' 'src/*.hpp' 'src/*.cpp' 'tests/*.cpp' 'tests/*.hpp' 2>/dev/null)
format:
	clang-format -i $(FORMATTED)

sanitize:
	$(MAKE) VARIANT=sanitize $(BUILD)/sanitize/tests/unit
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 OMP_NUM_THREADS=2 $(BUILD)/sanitize/tests/unit --gtest_brief=1

PREFIX ?= /usr/local
install: all
	install -D $(BUILD)/sherd $(DESTDIR)$(PREFIX)/bin/sherd
