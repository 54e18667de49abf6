# What the build and the tests need from Debian 12. Installs only what is missing, as root; without root it says what to ask for.

DEBIAN_PACKAGES := g++ make pkg-config openmpi-bin libopenmpi-dev libhdf5-dev libeigen3-dev libboost-program-options-dev libdnnl-dev \
  nlohmann-json3-dev libfmt-dev libxxhash-dev libgtest-dev python3 python3-numpy python3-h5py clang-format clang-tidy openssh-client
DEPS_STAMP := $(BUILD)/deps.stamp

.PHONY: deps
deps:
	@missing=; for p in $(DEBIAN_PACKAGES); do dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'install ok installed' || missing="$$missing $$p"; done; \
	if [ -z "$$missing" ]; then echo "deps: everything needed is installed"; \
	elif ! command -v apt-get >/dev/null; then echo "deps: no apt-get here; needed, under Debian's names:$$missing (docs/build.md)"; \
	elif [ "$$(id -u)" != 0 ]; then echo "deps: not root; ask for:$$missing (or see docs/build.md for builds without root)"; \
	else echo "deps: installing$$missing"; apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null || echo "deps: could not install all of:$$missing"; fi
