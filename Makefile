# make                build ./trainer                make test      build and run the tests
# make demo           two ranks train shapes         make bench     the speed tables
# make trainer-simt   … with the CUDA emulator       make layers    check the include rules
# make gemm_ladder    the GPU product in ten steps   make lines     count lines against the budget
# make bandwidth_ladder  … and a gradient that is bound by memory
# make mini           ./mini, the trainer in one file to read: src/mini/mini.cpp
# make deps           install what is missing (apt)  make format    clang-format in place
# make static         ./trainer-static, which needs no library; with CUDA=1 glibc and the driver
# make install        PREFIX=/usr/local DESTDIR=     make deb       a Debian package in build/
# make wheel          ./trainer-static for `pip install`, in build/
# make arm64          ./trainer-static-aarch64, and the unit tests for it under qemu-user
# make fuzz           libFuzzer on what reads strangers' files (clang)
# make spectrograms   sound files or made-up music to images (installs libsndfile and FFTW)
# make gpu-kit        build/gpu-kit: tests and benches for a machine with a GPU and nothing else
# Options: SAN=1 (address, undefined behaviour)  TSAN=1 (threads)  WERROR=1 (warnings are errors)
#          CUDA=0|1 (kernels for GPUs; 1 where there are a GPU and nvcc)
#          ARCH="75 80 90" (compute capabilities), ARCH=all (those of a release); without it the
#          GPUs of this machine, or else PTX of 8.0 that a driver compiles for what it finds
#          TESTS="ring join" (only tests/test_ring.cpp and so on: quick to build)
#          V=1 (print whole commands)  UNITY=0 (compile each file by itself)
#          All processors are used; -j N sets another number of jobs.
# This file has flags and programs; tools/make/*.mk have objects, releases and checks.
MAKEFLAGS += -r
ifeq ($(MAKELEVEL),0)
  MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)
endif
MACHINE := $(shell uname -m)
CROSS   := $(filter-out $(shell uname -m),$(MACHINE))
VARIANT := $(if $(SAN),san,$(if $(TSAN),tsan,release))
BUILD   := build/$(VARIANT)$(CROSS:%=-%)

# AVX2 is the floor on x86-64; files named *_avx512.cpp and *_avx512_bf16.cpp are chosen at run time.
ISA        := $(if $(filter x86_64,$(MACHINE)),-march=x86-64-v3)
# (GCC 12 warns of its own header.)
ISA_AVX512 := -march=x86-64-v4 -mprefer-vector-width=512 -Wno-uninitialized -Wno-maybe-uninitialized
ISA_BF16   := $(ISA_AVX512) -mamx-tile -mamx-bf16 -mavx512bf16

# -O1 for control code (-Os where it runs seldom), -O2 and -O3 for code that touches every byte. -g1: line numbers.
# Checked by a sanitizer, that would take twice as long to compile.
OPTIMISE    := $(if $(SAN)$(TSAN),-O0,-O1)
CXX         := $(CROSS:%=%-linux-gnu-)g++
INCLUDE     := $(if $(CROSS),build/static-$(MACHINE),/usr)/include
CXXFLAGS    := -std=c++20 $(OPTIMISE) -g1 -Wall -Wextra -I. -isystem $(INCLUDE)/opencv4 -MMD -MP -pthread $(ISA)
CXXFLAGS    += $(if $(CROSS),-isystem $(INCLUDE))
CXXFLAGS    += $(if $(findstring clang,$(CXX)),-Wno-unknown-pragmas -Wno-missing-braces)
KERNELFLAGS := -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math
# A stack or a buffer of the C library that overflows ends the process; so it does not in kernels,
# which strangers' bytes do not reach.
FORTIFY     := $(shell test "$$($(CXX) -dumpversion 2>&1 | cut -d. -f1)" -ge 12 2>/dev/null && echo 3 || echo 2)
HARDENED    := $(if $(SAN)$(TSAN),,-fstack-protector-strong -fstack-clash-protection \
                 -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=$(FORTIFY))
CXXFLAGS    += $(HARDENED)
KERNELFLAGS += $(if $(HARDENED),-fno-stack-protector -fno-stack-clash-protection)
# The trainer needs no imgcodecs, which brings 77 libraries: they took 0.06 s at each start.
LDLIBS      := -Wl,-z,relro,-z,now,--as-needed -lopencv_imgcodecs -lopencv_imgproc -lopencv_core -ltiff -lwebp -ljpeg -lfmt -lcurl \
               -larchive -lz -lssl -lcrypto -lpthread -lboost_context

# CUDA kernels take minutes to compile, so the default is to build them only if there is a GPU.
NVCC := $(shell command -v nvcc)
GPUS := $(if $(NVCC),$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | sort -u))
CUDA ?= $(if $(SAN)$(TSAN)$(CROSS),0,$(if $(GPUS),1,0))
ifeq ($(CUDA),1)
  ARCH      ?= $(patsubst 90,90a,$(GPUS))
  ARCHS     := $(if $(filter all,$(ARCH)),75 80 90,$(strip $(ARCH)))
  PTX       := $(or $(lastword $(sort $(filter-out %a,$(ARCHS)))),80)
  # Warnings about host code come from g++, which compiles the same files for the emulator.
  NVCCFLAGS := -std=c++20 -O3 -lineinfo -I. -MMD -MP --expt-relaxed-constexpr -DFMT_CONSTEVAL= \
               -DFMT_USE_CONSTEXPR=1 -DCONVOY_ARCH='"$(or $(ARCHS),$(PTX))"' -DCONVOY_MACHINE_CODE='"$(ARCHS)"' \
               $(foreach a,$(ARCHS),-gencode arch=compute_$a,code=sm_$a) \
               -gencode arch=compute_$(PTX),code=compute_$(PTX) \
               $(if $(shell nvcc --help | grep compress-mode),--compress-mode=size)
  CUDA_LIBS := -L$(dir $(shell command -v nvcc))../lib64 -lcudart_static -ldl -lrt
endif
ifdef WERROR
  CXXFLAGS  += -Werror
  NVCCFLAGS += -Werror all-warnings
endif
ifdef SAN
  # Beside the sanitizers GCC 12 sees overflows in fmt that are not there.
  CXXFLAGS    += -Wno-error -fsanitize=address,undefined -fno-omit-frame-pointer
  KERNELFLAGS += -O2
  LDLIBS      += -fsanitize=address,undefined
endif
ifdef TSAN
  CXXFLAGS += -fsanitize=thread -Wno-tsan
  LDLIBS   += -fsanitize=thread
endif

all: trainer
include tools/make/objects.mk
objects: $(MAIN_OBJ) $(LIB_OBJ) $(SIMT_OBJ) $(TEST_OBJ) $(LADDER_OBJ) $(LADDER_MAINS)
trainer: $(BUILD)/trainer
trainer-simt: $(BUILD)/trainer-simt
gemm_ladder bandwidth_ladder: %: $(BUILD)/%
mini: $(BUILD)/mini
spectrograms: $(BUILD)/spectrograms
trainer trainer-simt gemm_ladder bandwidth_ladder spectrograms mini: FORCE
	@cmp -s $(BUILD)/$@ $@ || cp -f $(BUILD)/$@ $@
FORCE:
define link
@echo "LINK $(@:$(BUILD)/%=%)"
$(Q)$(CXX) $(filter %.o,$^) -o $@ $(LDLIBS) $(CUDA_LIBS)
endef
$(BUILD)/trainer: $(MAIN_OBJ) $(LIB_OBJ) $(CHOICE)
	$(link)
	$(if $(and $(NVCC),$(filter 0,$(CUDA))),@echo "No GPU here: built without CUDA kernels (make CUDA=1 adds them)")
$(BUILD)/trainer-simt: $(MAIN_OBJ) $(LIB_OBJ) $(SIMT_OBJ) $(CHOICE)
$(BUILD)/run_tests: $(TEST_OBJ) $(LIB_OBJ) $(SIMT_OBJ) $(CHOICE)
# The whole idea in one file, which needs no unit. Sums of products in any order: only so are they vectors.
MINIFLAGS := -O2 -fvect-cost-model=dynamic -ffp-contract=off -fassociative-math -fno-signed-zeros \
             -fno-trapping-math -fno-math-errno
$(BUILD)/mini: src/mini/mini.cpp $(RULES) | $(READY)
	$(call say,CXX)
	$(Q)$(CXX) $(CXXFLAGS) $(MINIFLAGS) -DASIO_STANDALONE $< -o $@ -ljpeg -lpthread
# Sound to images; the trainer needs neither of its libraries.
SOUND := $(and $(wildcard /usr/include/sndfile.h),$(wildcard /usr/include/fftw3.h))
build/sound.ok: tools/deps.sh
	@mkdir -p $(@D)
	$(if $(SOUND),,tools/deps.sh libsndfile1-dev libfftw3-dev)
	@touch $@
$(BUILD)/tools/spectrograms.cpp.o: | build/sound.ok
$(BUILD)/spectrograms: LDLIBS += -lsndfile -lfftw3f
$(BUILD)/spectrograms: $(BUILD)/tools/spectrograms.cpp.o $(BUILD)/tests/lab/music.cpp.o $(filter $(BUILD)/data/% $(BUILD)/src/base/%,$(LIB_OBJ))
$(LADDERS): $(BUILD)/%: $(BUILD)/tests/lab/%_main.cpp.o $(LADDER_OBJ) $(filter $(BUILD)/kernels/% $(GPU)/% $(BUILD)/src/base/%,$(LIB_OBJ)) $(SIMT_OBJ) $(CHOICE)
$(BUILD)/trainer-simt $(BUILD)/run_tests $(LADDERS) $(BUILD)/spectrograms:
	$(link)

# The tests of the whole program run the trainer beside them.
test: $(BUILD)/run_tests $(BUILD)/trainer-simt $(BUILD)/mini $(if $(SOUND),$(BUILD)/spectrograms)
	$(if $(TSAN),TSAN_OPTIONS=suppressions=$(CURDIR)/tests/tsan.supp) tests/run_cases $<
# Leaves out each barrier of the CUDA kernels in turn: a test must notice. Takes minutes.
barriers: $(BUILD)/run_tests
	tests/lab/barriers
demo: trainer
	tools/demo.sh ./trainer
bench: trainer
	./trainer bench kernels
	./trainer bench train --model tiny --batch 64
	./trainer bench train --model alexnet --batch 64
	./trainer bench train --model resnet18 --batch 32
	./trainer bench train --model vgg16 --batch 16
	./trainer bench allreduce --world 2
	./trainer bench data

SOURCES = $(shell git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')
format:
	clang-format -i $(SOURCES)
format-check:
	clang-format --dry-run -Werror $(SOURCES)
clean:
	rm -rf build trainer trainer-simt trainer-static* gemm_ladder bandwidth_ladder spectrograms mini
include tools/make/release.mk tools/make/checks.mk
.PHONY: FORCE all objects static arm64 gpu-kit test barriers fuzz demo bench deps layers format format-check lines clean install uninstall deb wheel
