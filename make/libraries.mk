# Where libraries lie. Each NAME_HOME may be given (docs/build.md); without it, Debian's places and pkg-config are used.

PKG := pkg-config
pkg_cflags = $(patsubst -I%,-isystem %,$(shell $(PKG) --cflags $(1) 2>/dev/null))
home_cflags = -isystem $(1)/include
home_links  = $(foreach d,$(wildcard $(1)/lib64 $(1)/lib),-L$(d) -Wl,-rpath,$(d))

ifdef MPI_HOME
  MPI_CFLAGS := $(call home_cflags,$(MPI_HOME))
  MPI_LINKS  := $(call home_links,$(MPI_HOME)) -lmpi
else
  MPI_CFLAGS := $(call pkg_cflags,ompi-c)
  MPI_LINKS  := $(shell $(PKG) --libs ompi-c 2>/dev/null || echo -lmpi)
endif
# the C++ bindings of old MPI versions would want a library of their own
MPI_CFLAGS += -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX
ifdef HDF5_HOME
  HDF5_CFLAGS := $(call home_cflags,$(HDF5_HOME))
  HDF5_LINKS  := $(call home_links,$(HDF5_HOME)) -lhdf5
else
  HDF5_CFLAGS := $(call pkg_cflags,hdf5-serial)
  HDF5_LINKS  := $(shell $(PKG) --libs hdf5-serial 2>/dev/null || echo -lhdf5)
endif
ifdef EIGEN_HOME
  EIGEN_CFLAGS := $(call home_cflags,$(EIGEN_HOME)) $(call home_cflags,$(EIGEN_HOME))/eigen3
else
  EIGEN_CFLAGS := $(or $(call pkg_cflags,eigen3),-isystem /usr/include/eigen3)
endif
ifdef BOOST_HOME
  BOOST_CFLAGS := $(call home_cflags,$(BOOST_HOME))
  BOOST_LINKS  := $(call home_links,$(BOOST_HOME)) -lboost_program_options
else
  BOOST_LINKS  := -lboost_program_options
endif
ifdef DNNL_HOME
  DNNL_CFLAGS := $(call home_cflags,$(DNNL_HOME))
  DNNL_LINKS  := $(call home_links,$(DNNL_HOME)) -ldnnl
else
  DNNL_LINKS  := -ldnnl
endif
ifdef FMT_HOME
  FMT_CFLAGS := $(call home_cflags,$(FMT_HOME))
  FMT_LINKS  := $(call home_links,$(FMT_HOME)) -lfmt
else
  FMT_LINKS  := -lfmt
endif
ifdef XXHASH_HOME
  XXHASH_CFLAGS := $(call home_cflags,$(XXHASH_HOME))
  XXHASH_LINKS  := $(call home_links,$(XXHASH_HOME)) -lxxhash
else
  XXHASH_LINKS  := -lxxhash
endif
ifdef JSON_HOME
  JSON_CFLAGS := $(call home_cflags,$(JSON_HOME))
endif
ifdef GTEST_HOME
  GTEST_CFLAGS := $(call home_cflags,$(GTEST_HOME))
  GTEST_LINKS  := $(call home_links,$(GTEST_HOME)) -lgtest
else
  GTEST_LINKS  := -lgtest
endif

LIB_INCLUDES := $(MPI_CFLAGS) $(HDF5_CFLAGS) $(EIGEN_CFLAGS) $(BOOST_CFLAGS) $(DNNL_CFLAGS) $(FMT_CFLAGS) $(XXHASH_CFLAGS) $(JSON_CFLAGS) $(GTEST_CFLAGS)
LIB_LINKS    := $(MPI_LINKS) $(HDF5_LINKS) $(BOOST_LINKS) $(DNNL_LINKS) $(FMT_LINKS) $(XXHASH_LINKS) -lpthread -ldl
