# What the build and the tests need from Debian 12, and what lint needs besides. Installs only what is missing, as root; without root, and
# without apt, it says what to ask for.

DEBIAN_PACKAGES := g++ make pkg-config openmpi-bin libopenmpi-dev openssh-client libhdf5-dev libeigen3-dev libboost-program-options-dev \
  libdnnl-dev nlohmann-json3-dev libfmt-dev libxxhash-dev libgtest-dev python3 python3-venv python3-numpy python3-h5py
LINT_PACKAGES := clang-format clang-tidy

.PHONY: deps deps-lint
deps:
	@scripts/deps.sh $(DEBIAN_PACKAGES)
deps-lint:
	@scripts/deps.sh $(DEBIAN_PACKAGES) $(LINT_PACKAGES)
