# make                build ./trainer                make test      build and run the tests
# make demo           two ranks train shapes         make bench     the speed tables
# make trainer-simt   … with the CUDA emulator       make layers    check the include rules
# make gemm_ladder    the GPU product in six steps   make lines     count lines against the budget
# make mini           ./mini, the trainer in one file to read: src/mini/mini.cpp
# make deps           install what is missing (apt)  make format    clang-format in place
# make static         ./trainer-static, which needs no library; with CUDA=1 glibc and the driver
# make install        PREFIX=/usr/local DESTDIR=     make deb       a Debian package in build/
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
LDLIBS      := -Wl,-z,relro,-z,now -lopencv_imgcodecs -lopencv_imgproc -lopencv_core -ltiff -ljpeg -lfmt -lcurl -larchive -lz \
               -lssl -lcrypto -lpthread -Wl,--as-needed -lboost_context

# CUDA kernels take minutes to compile, so the default is to build them only if there is a GPU.
NVCC := $(shell command -v nvcc)
GPUS := $(if $(NVCC),$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | sort -u))
CUDA ?= $(if $(SAN)$(TSAN)$(CROSS),0,$(if $(GPUS),1,0))
ifeq ($(CUDA),1)
  ARCH      ?= $(GPUS)
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

LIB_SRC := $(wildcard kernels/*.cpp kernels/cpu/*.cpp net/*/*.cpp data/*.cpp data/*/*.cpp) \
           $(filter-out src/cli/main.cpp src/mini/mini.cpp,$(wildcard src/*/*.cpp src/*/*/*.cpp))
ifneq ($(MACHINE),x86_64)
  LIB_SRC := $(filter-out %_avx512.cpp %_avx512_bf16.cpp,$(LIB_SRC))
endif
# A compiler spends most of its time on headers. So it gets the files of one folder, or of a few, as one unit: a file
# that includes them all. Names in anonymous namespaces are therefore unique within a unit. Files named in SINGLE
# have flags or macros of their own or take long; UNITY=0 compiles every file by itself.
UNITY  ?= 1
SINGLE := %_avx512.cpp %_avx512_bf16.cpp data/images/pixel_ops.cpp src/model/start_values.cpp src/page/assets.cpp \
          src/cli/main.cpp kernels/backend.cpp net/control/asio.cpp kernels/cpu/winograd% kernels/cuda/conv2d.cu
net_HOLDS  := net/control net/ring
src/train_HOLDS := src/config src/model src/train
src/run_HOLDS   := src/checkpoint src/job src/page src/run
src/cli_HOLDS   := src/plan src/report src/bench src/cli
FOLDERS    := net src/run src/cli data src/train src/base kernels/cpu kernels/simt
in_folder   = $(filter-out $(SINGLE),$(filter $(addsuffix /%,$(or $($1_HOLDS),$1)),$2))
ifneq ($(sort $(filter-out src/mini,$(patsubst %/,%,$(wildcard src/*/)))),$(sort $(foreach f,$(filter src/%,$(FOLDERS)),$(or $($f_HOLDS),$f))))
  $(error a folder of src is in no unit: add it to one of the lists above)
endif
# units(FILES): the units and single files that hold these sources.
units      = $(if $(filter 1,$(UNITY)),$(foreach f,$(FOLDERS),$(if $(call in_folder,$f,$1),$f/unit.cpp)) \
               $(filter $(SINGLE),$1),$1)

CU_SRC   := $(wildcard kernels/cuda/*.cu)
CU_UNIT  := $(if $(filter 1,$(UNITY)),kernels/cuda/unit.cu $(filter $(SINGLE),$(CU_SRC)),$(CU_SRC))
# Each .cu is compiled by nvcc for GPUs, and by g++ for the emulator (kernels/simt).
SIMT     := $(BUILD)/simt
SIMT_SRC := $(wildcard kernels/simt/*.cpp)
GPU      := $(BUILD)/$(subst $() ,-,cuda $(or $(ARCHS),ptx$(PTX)))
GPU_OBJ  := $(if $(filter 1,$(CUDA)),$(CU_UNIT:%=$(GPU)/%.o))
SIMT_OBJ := $(patsubst %,$(BUILD)/%.o,$(call units,$(SIMT_SRC))) $(CU_UNIT:%=$(SIMT)/%.o)
LIB_CPP  := $(patsubst %,$(BUILD)/%.o,$(call units,$(LIB_SRC)))
LIB_OBJ  := $(LIB_CPP) $(GPU_OBJ)
MAIN_OBJ := $(BUILD)/src/cli/main.cpp.o
# The thread sanitizer has nothing to see in tests without threads of their own.
ifdef TSAN
  TESTS ?= ring shared_sum link messenger join faults health strangers loader remote cpu_backend grad_reducer \
           trainer program
endif
TEST_SRC := $(if $(TESTS),tests/main.cpp tests/call_hooks.cpp $(TESTS:%=tests/test_%.cpp),$(filter-out %/kit_main.cpp,$(wildcard tests/*.cpp)))
# Units of tests by the first letter of their subjects: [ab] holds tests/test_augment.cpp and so on. test_mini.cpp
# includes a program that uses Asio in its own way.
TEST_UNITS := t p s m ef r ab c l gh ijk no d uvwxyz
TEST_UNIT  := $(if $(TESTS)$(filter 0,$(UNITY)),$(TEST_SRC),tests/main.cpp tests/call_hooks.cpp tests/test_mini.cpp $(TEST_UNITS:%=tests/unit-%.cpp))
TEST_OBJ := $(patsubst %,$(BUILD)/%.o,$(TEST_UNIT)) \
            $(if $(TSAN),,$(patsubst %,$(SIMT)/%.o,$(wildcard tests/*.cu)) $(SIMT)/tests/lab/gemm_ladder.cu.o $(SIMT)/src/mini/mini.cu.o) \
            $(if $(filter 1,$(CUDA)),$(addprefix $(GPU)/,tests/mma_kernels.cu.o tests/lab/gemm_ladder.cu.o))
LADDER_OBJ := $(BUILD)/tests/lab/gemm_ladder_main.cpp.o $(SIMT)/tests/lab/gemm_ladder.cu.o \
              $(if $(filter 1,$(CUDA)),$(GPU)/tests/lab/gemm_ladder.cu.o)

all: trainer
objects: $(MAIN_OBJ) $(LIB_OBJ) $(SIMT_OBJ) $(TEST_OBJ) $(LADDER_OBJ)
trainer: $(BUILD)/trainer
trainer-simt: $(BUILD)/trainer-simt
gemm_ladder: $(BUILD)/gemm_ladder
mini: $(BUILD)/mini
spectrograms: $(BUILD)/spectrograms
trainer trainer-simt gemm_ladder spectrograms mini: FORCE
	@cmp -s $(BUILD)/$@ $@ || cp -f $(BUILD)/$@ $@
FORCE:
# What a binary has (kernels/backend.cpp) is what is linked into it. A file named after the choice
# is new when the choice changes.
CHOICE := $(BUILD)/$(subst $() ,-,$(notdir $(GPU)) $(CUDA) $(UNITY) $(TESTS)).choice
$(CHOICE):
	@mkdir -p $(@D) && rm -f $(BUILD)/*.choice && touch $@
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
$(BUILD)/mini: src/mini/mini.cpp Makefile | $(READY)
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
$(BUILD)/spectrograms: $(BUILD)/tools/spectrograms.cpp.o $(BUILD)/tools/music.cpp.o $(filter $(BUILD)/data/% $(BUILD)/src/base/%,$(LIB_OBJ))
$(BUILD)/gemm_ladder: $(LADDER_OBJ) $(filter $(BUILD)/kernels/% $(GPU)/% $(BUILD)/src/base/%,$(LIB_OBJ)) $(SIMT_OBJ) $(CHOICE)
$(BUILD)/trainer-simt $(BUILD)/run_tests $(BUILD)/gemm_ladder $(BUILD)/spectrograms:
	$(link)

# The same objects with static libraries. Without CUDA=1 on the command line it is for CPUs and has
# no dynamic dependency; with it, glibc and the driver are what remains. The linker would warn that
# getaddrinfo needs glibc's shared libraries: it does not for files and DNS (tests/static.sh).
STATIC_CUDA := $(if $(filter file,$(origin CUDA)),0,$(CUDA))
STATIC_LIBS := build/static-$(MACHINE)
STATIC      := $(BUILD)/static$(if $(filter 1,$(STATIC_CUDA)),-$(notdir $(GPU)))
STATIC_LINK  = $(CXX) $(filter %.o,$^) -o $@ -s -Wl,--gc-sections \
               -Wl,-Bstatic -L$(STATIC_LIBS)/lib $(LDLIBS) \
               $$(cat $(STATIC_LIBS)/libs | sed '$(if $(filter 1,$(STATIC_CUDA)),s/-lm\b//g)') $(if $(filter 1,$(STATIC_CUDA)),-static-libgcc -static-libstdc++ \
               $(subst -ldl,-Wl$(comma)-Bdynamic -ldl,$(CUDA_LIBS)),-static-pie $(PACKED) $(NO_WARNINGS))
comma := ,
# The relocations of -static-pie take 0.7 MB, packed 0.1; the linker for aarch64 cannot pack them yet.
PACKED      := $(if $(filter x86_64,$(MACHINE)),-Wl$(comma)-z$(comma)pack-relative-relocs)
# It hides errors as well, so it is only for the link that warns.
NO_WARNINGS  = $(if $(shell ld --help | grep -e --no-warnings),-Wl$(comma)--no-warnings)
static: $(STATIC)/trainer
	@cmp -s $< trainer-static$(CROSS:%=-%) || cp -f $< trainer-static$(CROSS:%=-%)
$(STATIC)/trainer: $(MAIN_OBJ) $(LIB_CPP) $(if $(filter 1,$(STATIC_CUDA)),$(GPU_OBJ)) $(STATIC_LIBS)/libs
	@mkdir -p $(@D); echo "LINK $(@:$(BUILD)/%=%)"
	$(Q)$(STATIC_LINK)

# Under qemu the emulator of CUDA does not run: its tests are left out, and those that start programs.
NOT_ON_ARM64 := mini simt mma gemm_ladder graph tensor_cores bench_kernels moments mixed bf16 cublas \
                program netns shard_modes
arm64:
	tools/deps.sh qemu-user-static
	$(MAKE) MACHINE=aarch64 static build/release-aarch64/static/run_tests
	CONVOY_TEST_DEVICE=cpu qemu-aarch64-static build/release-aarch64/static/run_tests \
	  -tce='program*,health: the command*,*in bf16*,trace: copies beside*' -sfe='$(subst $() ,$(comma),$(NOT_ON_ARM64:%=*test_%.cpp))'
# The GPU kit: all that tests/lab/gpu_check.sh needs on a machine that has a GPU, its driver and glibc. CUDA=0 makes one
# for its emulator alone.
KIT_MAINS := $(addprefix $(STATIC)/main/,trainer run_tests gemm_ladder)
$(STATIC)/main/trainer.o: $(MAIN_OBJ)
$(STATIC)/main/run_tests.o: $(BUILD)/tests/main.cpp.o
$(STATIC)/main/gemm_ladder.o: $(BUILD)/tests/lab/gemm_ladder_main.cpp.o
$(STATIC)/main/%.o:
	@mkdir -p $(@D)
	objcopy --redefine-sym main=$*_main $< $@
$(STATIC)/kit: $(KIT_MAINS:=.o) $(BUILD)/tests/kit_main.cpp.o $(filter-out %/tests/main.cpp.o,$(TEST_OBJ)) $(LIB_CPP) \
               $(if $(filter 1,$(STATIC_CUDA)),$(GPU_OBJ)) $(SIMT_OBJ) $(STATIC_LIBS)/libs
	@echo "LINK $(@:$(BUILD)/%=%)"
	$(Q)$(STATIC_LINK)
gpu-kit:
	@command -v nvcc >/dev/null || { echo "gpu-kit: there is no nvcc; it comes with the CUDA toolkit" >&2; exit 1; }
	$(MAKE) CUDA=1 ARCH='$(or $(strip $(ARCH)),80 90a)' build/gpu-kit
build/gpu-kit: $(STATIC)/kit FORCE
	@rm -rf $@ && mkdir -p $@
	cp $< tests/lab/gpu_check.sh tests/lab/compare $@
	nvcc --version 2>/dev/null | sed -nE 's/.*release ([0-9.]+).*/\1, compute capabilities $(ARCHS)/p' >$@/cuda_release
	@du -sm $@; test "$$(du -sm $@ | cut -f1)" -le 56 || { echo "gpu-kit: it may have 56 MiB" >&2; exit 1; }
$(STATIC_LIBS)/libs: tools/static_libs
	tools/static_libs $(@D) $(MACHINE)

READY := build/deps.ok $(if $(CROSS),$(STATIC_LIBS)/libs)
# The set-up of a fresh machine, before anything is compiled; a look that takes no time once done.
build/deps.ok: tools/deps.sh
	@mkdir -p build
	tools/deps.sh
	@touch $@
deps:
	tools/deps.sh

$(BUILD)/net/%.o $(BUILD)/data/%.o: CXXFLAGS += $(OPTIMISE:-O1=-O2)
$(BUILD)/src/cli/%.o $(BUILD)/src/run/%.o: CXXFLAGS += $(OPTIMISE:-O1=-Os)
# No fused multiply-add: crops and filter weights round alike on every machine, and as Pillow does.
$(BUILD)/data/%.o $(BUILD)/tools/music.cpp.o: CXXFLAGS += -ffp-contract=off
$(BUILD)/kernels/%.o: CXXFLAGS += $(KERNELFLAGS)
$(BUILD)/data/%_avx512.cpp.o: CXXFLAGS += -mavx512vbmi -mavx512vnni
# Vectors for loops over pixels.
$(BUILD)/data/images/pixel_ops.cpp.o: CXXFLAGS += -O3
# Vectors for the start values, and the same ones on every machine.
$(BUILD)/src/model/start_values.cpp.o: CXXFLAGS += -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math
$(BUILD)/%_avx512.cpp.o: CXXFLAGS += $(ISA_AVX512)
$(BUILD)/%_avx512_bf16.cpp.o: CXXFLAGS += $(ISA_BF16)
# The page has its files in the program; without dygraphs (libjs-dygraphs) it says so in place of curves.
DYGRAPHS := /usr/share/javascript/dygraphs/dygraph.min.js
build/charts.js.gz: $(wildcard $(DYGRAPHS)) | $(READY)
	@{ cat $(DYGRAPHS) 2>/dev/null || true; } | gzip -9n >$@
$(BUILD)/src/page/assets.cpp.o: build/charts.js.gz $(addprefix src/page/page.,html css js)
ifdef SAN
# What is tested is instrumented in full; the tests themselves would take twice as long to compile.
$(BUILD)/tests/%.o: CXXFLAGS += -fno-sanitize=undefined
# Unrolled tiles of registers: with -O2 as long to compile as a tenth of all the rest.
$(BUILD)/kernels/cpu/micro_%.o: KERNELFLAGS += -O1
endif
# A line for each object: what part of them is there, and what is being compiled.
GOAL_OBJ = $(MAIN_OBJ) $(LIB_OBJ) $(if $(filter test all %run_tests %trainer-simt,$(MAKECMDGOALS)),$(SIMT_OBJ) $(TEST_OBJ))
MANY    := $(word 4,$(filter-out $(wildcard $(GOAL_OBJ)),$(GOAL_OBJ)))
say      = @mkdir -p $(@D); printf '$(if $(MANY),[%3d%%] ,%.0s)%-4s %s\n' $(if $(MANY),$$((100 * $$(ls $(GOAL_OBJ) 2>&- | wc -l) / \
             $(words $(GOAL_OBJ)))),0) $1 $(patsubst $(BUILD)/%,%,$<)
Q       := $(if $(V),,@)
define compile
$(call say,CXX)
$(Q)$(CXX) $(CXXFLAGS) -c $< -o $@
endef
$(BUILD)/%.cpp.o: %.cpp Makefile | $(READY)
	$(compile)
$(BUILD)/%.cpp.o: $(BUILD)/%.cpp Makefile | $(READY)
	$(compile)
# GCC takes what an included file keeps to itself for a mistake.
$(BUILD)/%/unit.cpp.o $(BUILD)/tests/unit-%.o: CXXFLAGS += $(if $(findstring clang,$(CXX)),,-Wno-subobject-linkage)
# write_unit(FILES): the target includes these files; it is written only if their list has changed.
write_unit = @mkdir -p $(@D); printf '\#include "%s"\n' $1 | cmp -s - $@ || printf '\#include "%s"\n' $1 >$@
$(BUILD)/%/unit.cpp: FORCE
	$(call write_unit,$(call in_folder,$*,$(LIB_SRC) $(SIMT_SRC)))
$(BUILD)/tests/unit-%.cpp: FORCE
	$(call write_unit,$(filter-out tests/test_mini.cpp,$(wildcard tests/test_[$*]*.cpp)))
$(GPU)/kernels/cuda/unit.cu: FORCE
	$(call write_unit,$(filter-out $(SINGLE),$(CU_SRC)))
$(SIMT)/kernels/cuda/unit.cu.cpp: FORCE | $(CU_SRC:%=$(SIMT)/%.cpp)
	$(call write_unit,$(patsubst %,%.cpp,$(filter-out $(SINGLE),$(CU_SRC))))
# The kernels as C++: launches and shared memory rewritten by launch.sed, line by line in place. Every
# pointer is checked for the alignment of its type (kernels/simt/checks.cpp).
REWRITE = @mkdir -p $(@D) && { echo '\#line 1 "$<"'; sed -zEf kernels/simt/launch.sed $<; } > $@
$(SIMT)/%.cuh: %.cuh kernels/simt/launch.sed
	$(REWRITE)
$(SIMT)/%.cu.cpp: %.cu kernels/simt/launch.sed
	$(REWRITE)
$(SIMT)/%.o: CXXFLAGS += $(OPTIMISE:-O0=-O1) -fsanitize=alignment -Wno-unknown-pragmas
$(SIMT)/%.cu.o: $(SIMT)/%.cu.cpp Makefile | $(patsubst %,$(SIMT)/%,$(wildcard kernels/cuda/*.cuh)) $(READY)
	$(call say,SIMT)
	$(Q)$(CXX) -I$(SIMT) $(CXXFLAGS) -c $< -o $@
define compile_cuda
$(call say,NVCC)
$(Q)nvcc $(NVCCFLAGS) -c $< -o $@
endef
$(GPU)/%.cu.o: %.cu Makefile | $(READY)
	$(compile_cuda)
$(GPU)/%.cu.o: $(GPU)/%.cu Makefile | $(READY)
	$(compile_cuda)
.PRECIOUS: $(SIMT)/%.cu.cpp $(SIMT)/%.cuh $(BUILD)/%/unit.cpp $(BUILD)/tests/unit-%.cpp
-include $(patsubst %.o,%.d,$(MAIN_OBJ) $(LIB_OBJ) $(SIMT_OBJ) $(TEST_OBJ) $(LADDER_OBJ) \
    $(BUILD)/tools/spectrograms.cpp.o $(BUILD)/tools/music.cpp.o)

# The tests of the whole program run the trainer beside them.
test: $(BUILD)/run_tests $(BUILD)/trainer-simt $(BUILD)/mini $(if $(SOUND),$(BUILD)/spectrograms)
	$(if $(TSAN),TSAN_OPTIONS=suppressions=$(CURDIR)/tests/tsan.supp) tools/run_tests $<
# Leaves out each barrier of the CUDA kernels in turn: a test must notice. Takes minutes.
barriers: $(BUILD)/run_tests
	tests/lab/barriers
# Each target for FUZZ_SECONDS; what crashed it is left in build/fuzz.
FUZZ_SECONDS := 20
FUZZ_SRC := $(wildcard data/sources/*.cpp src/base/*.cpp) data/order.cpp \
            $(addprefix data/images/,bitmap.cpp decode.cpp jpeg.cpp tiff.cpp) net/control/wire.cpp net/control/tls.cpp \
            $(addprefix src/checkpoint/,meta.cpp safetensors.cpp torch_file.cpp pickle.cpp) $(wildcard src/config/*.cpp) \
            src/job/exchange.cpp $(wildcard src/model/*.cpp src/model/layers/*.cpp) \
            tests/fuzz/fuzz.cpp
FUZZ_OBJ := $(FUZZ_SRC:%=build/fuzz/%.o)
build/fuzz/%.o: % Makefile | $(READY)
	@mkdir -p $(@D)
	clang++ $(CXXFLAGS) -Wno-unused-parameter -Wno-unknown-pragmas -Wno-missing-braces -ffp-contract=off \
	  -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -c $< -o $@
build/fuzz/fuzz: $(FUZZ_OBJ)
	clang++ -fsanitize=fuzzer,address,undefined $^ -o $@ $(LDLIBS)
fuzz: $(if $(shell command -v clang++),build/fuzz/fuzz)
	@$(if $^,:,echo "fuzz: left out, as there is no clang++ (apt-get install clang)"; exit 0); \
	for target in tar tfrecord idx gzip index list image wire safetensors torch meta model options settings offer token; do \
	  mkdir -p build/fuzz/corpus/$$target; log=build/fuzz/$$target.log; \
	  FUZZ_TARGET=$$target FUZZ_SEEDS=build/fuzz/corpus/$$target $< -max_total_time=$(FUZZ_SECONDS) \
	    -max_len=8192 -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 -verbosity=0 -close_fd_mask=1 \
	    -artifact_prefix=build/fuzz/$$target- build/fuzz/corpus/$$target >$$log 2>&1 || \
	    { tail -n 60 $$log; echo "fuzz: $$target: FAILED"; exit 1; }; \
	  echo "fuzz: $$target: $$(sed -n 's/.*executed_units: *//p' $$log) runs"; \
	done
-include $(FUZZ_OBJ:.o=.d)
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

# help2man makes the manual page from --help-all; its date is that of the commit.
PROGRAM := trainer
PREFIX  := /usr/local
BIN      = $(DESTDIR)$(PREFIX)/bin/trainer
DOC      = $(DESTDIR)$(PREFIX)/share/doc/convoy
MAN      = $(DESTDIR)$(PREFIX)/share/man/man1/trainer.1
install deb: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)
install: $(PROGRAM:trainer-static=static)
	install -D $(PROGRAM) $(BIN)
	install -d $(DOC) $(dir $(MAN))
	install -m644 README.md CHANGELOG.md $(DOC)
	install -m644 LICENSE $(DOC)/copyright
	$(if $(shell command -v help2man),umask 022 && help2man -N --help-option=--help-all -o $(MAN) ./$(PROGRAM) \
	  --version-string='trainer (Convoy) $(VERSION)' --name='train convolutional networks on folders of images' && \
	  gzip -9nf $(MAN),@echo "install: no manual page, as there is no help2man (apt-get install help2man)")
uninstall:
	rm -rf $(BIN) $(DOC) $(MAN).gz
deb: PROGRAM := trainer-static
deb:
	rm -rf build/deb
	$(MAKE) install PROGRAM=$(PROGRAM) DESTDIR=$(CURDIR)/build/deb/debian/convoy PREFIX=/usr
	tools/deploy/deb $(VERSION)
VERSION = $(shell sed -n 's/.*kVersion = "\(.*\)".*/\1/p' src/cli/version.cpp)

# Include rules: a file includes from its own room and from those before it in ROOMS; net, data and
# kernels know src/base alone, and not each other. Asio, CUDA and the kernels of one backend stay
# where they are wrapped.
ROOMS := src/base kernels data net src/config src/model src/train src/checkpoint src/job src/page src/run \
         src/report src/plan src/bench src/cli src/mini tests tools
# What net/ring includes of net/control, which includes nothing of net/ring.
RING_USES := ids|job_status|join_options|limits|membership|rendezvous|roster|tls|wire
layers:
	@grep -rnoP '^.include "\K(src/[a-z]+|[a-z]+)(?=/)' --include=*.h --include=*.c* $(ROOMS) | sort -u | \
	  awk -F: 'BEGIN { n = split("$(ROOMS)", rooms, " "); for (i = 1; i <= n; ++i) place[rooms[i]] = i } \
	    { match($$1, /^(src\/[a-z]+|[a-z]+)/); from = substr($$1, 1, RLENGTH); to = $$3; \
	      apart = place[from] > 1 && place[from] < 5 && place[to] != 1 && from != to; \
	      if (!(to in place) || place[to] > place[from] && from != "tests" || apart) \
	        { print $$1 ":" $$2 ": " from " may not include " to; bad = 1 } } END { exit bad }'
	@! grep -rlE '^.include <asio' --include=*.h --include=*.c* --exclude-dir=mini src kernels data tests tools
	@test "$$(grep -rlE '^.include <asio' net)" = net/control/asio.h
	@! grep -rnE '^.include "net/ring/' net/control
	@! grep -rnE '^.include "net/control/' net/ring | grep -vE '/($(RING_USES))\.h"'
	@! grep -rnP '^.include "data/(?!images/)' data/images
	@! grep -rnP '^.include "data/(?!images/|sources/|order\.h)' data/sources
	@! grep -nE '^.include "' src/mini/mini.cpp  # no file of the others
	@! grep -rnE '^.include (<cuda|"kernels/(cuda|simt)/)' --include=*.h --include=*.cpp src net data tools kernels/cpu
	@! grep -rnE '^.include <cuda' kernels tests | grep -v '^kernels/cuda/cuda.h:'
	@# The calls that src/README.md lists: each named line holds the function's name.
	@sed -nE 's/^\| `(.*::)?(\w+)` \| (\S+):([0-9]+) .*/\2 \3 \4/p' src/README.md | while read -r name file line; do \
	  sed -n "$${line}p" $$file | grep -qw "$$name" || { echo "src/README.md: $$file:$$line is not $$name"; exit 1; }; done
	@echo layers: ok

SOURCES = $(shell git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')
format:
	clang-format -i $(SOURCES)
format-check:
	clang-format --dry-run -Werror $(SOURCES)
# Every line has readers who pay for it: without tests there shall be no more lines than BUDGET, which only falls. A change
# may need up to SLACK more until others fall.
BUDGET := 50372
SLACK  := 200
lines:
	@git ls-files src net kernels data tools ':!*.jpg' ':!*.png' | xargs wc -l | sed '/ total$$/d' | sort -rn | \
	  awk '{ n = split($$2, at, "/"); room = at[1] (n > 2 ? "/" at[2] : ""); lines[room] += $$1; all += $$1 } \
	    NR <= 5 { largest = largest "\n" $$0 } \
	    END { for (room in lines) printf "%6d  %s\n", lines[room], room | "sort -k2"; close("sort -k2"); \
	          printf "%6d  of $(BUDGET)\n", all; if (all <= $(BUDGET)) exit; \
	          print "lines: " all - $(BUDGET) " more than the ceiling (BUDGET in the Makefile) allows. The ceiling keeps the whole " \
	                "small enough to be read.\nPlease remove as many lines as your change adds: what nothing needs, or what is said " \
	                "twice. The five largest files:" largest; \
	          if (all <= $(BUDGET) + $(SLACK)) { print "A change may add up to $(SLACK) lines, so this one passes."; exit } \
	          print "A change may add up to $(SLACK) lines. This is more, so it fails."; exit 1 }'
clean:
	rm -rf build trainer trainer-simt trainer-static* gemm_ladder spectrograms mini
.PHONY: FORCE all objects static arm64 gpu-kit test barriers fuzz demo bench deps layers format format-check lines clean install uninstall deb
