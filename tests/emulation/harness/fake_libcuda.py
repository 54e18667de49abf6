"""Writes a driver's library in C that does nothing and says that all went well: cuDNN loads its kernels through one when it builds a plan.

    fake_libcuda.py STUB > libcuda.c

STUB is the toolkit's libcuda.so, which lists the functions there are. No device is found: cuInit fails.
"""
import subprocess
import sys

GIVE_A_HANDLE = ("cuLibraryLoadData", "cuLibraryGetKernel", "cuLibraryGetModule", "cuKernelGetFunction", "cuModuleLoadData", "cuModuleLoadDataEx",
                 "cuModuleGetFunction")


def definition(name):
    if name in GIVE_A_HANDLE:
        return f"int {name}(void** handle) {{ *handle = (void*)0x1000; return 0; }}"
    if name == "cuDriverGetVersion":
        return "int cuDriverGetVersion(int* version) { *version = 13000; return 0; }"
    if name == "cuInit":
        return "int cuInit(unsigned flags) { (void)flags; return 100; }"
    if name.startswith("cuGetProcAddress"):
        return f"int {name}(const char* name, void** address) {{ *address = dlsym(RTLD_DEFAULT, name); return *address ? 0 : 500; }}"
    return f"int {name}(void) {{ return 0; }}"


def main():
    symbols = subprocess.run(["nm", "-D", "--defined-only", sys.argv[1]], check=True, capture_output=True, text=True).stdout
    names = sorted({line.split()[2].split("@")[0] for line in symbols.splitlines() if line.split()[1] == "T"})
    print("#define _GNU_SOURCE\n#include <dlfcn.h>", *map(definition, names), sep="\n")


if __name__ == "__main__":
    main()
