# make          build ./trainer                     make demo    two ranks train the built-in set
# make test     build and run the tests             make deps    install what is missing (apt)
# make bench    the speed tables                    make layers  check the include rules
# make format   clang-format in place               make lines   count lines
# make gemm_ladder   build ./gemm_ladder: a product of matrices on a GPU in six steps
# Options: SAN=1 (address, undefined behaviour)  TSAN=1 (threads)
#          CUDA=0|1 (kernels for GPUs; 1 where there is an nvcc)  ARCH="75 80 90" (their generations)
VARIANT := $(if $(SAN),san,$(if $(TSAN),tsan,release))
BUILD   := build/$(VARIANT)
MACHINE := $(shell uname -m)

# AVX2 is the floor on x86-64; files named *_avx512.cpp are chosen at run time.
ISA        := $(if $(filter x86_64,$(MACHINE)),-march=x86-64-v3)
ISA_AVX512 := -march=x86-64-v4 -mprefer-vector-width=512

# Debug information costs build time and memory: -g1 keeps line numbers for traces.
CXX      := g++
CXXFLAGS := -std=c++20 $(if $(SAN)$(TSAN),-O1,-O2) -g1 -Wall -Wextra -Werror -I. -isystem /usr/include/opencv4 -MMD -MP -pthread $(ISA)
CUDA     ?= $(if $(SAN)$(TSAN),0,$(if $(shell command -v nvcc),1,0))
KERNELFLAGS := -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math
LDLIBS   := -lboost_context -lopencv_imgcodecs -lopencv_imgproc -lopencv_core -ljpeg -lfmt -lcrypto -lpthread

# Cubins for 7.5, 8.x and 9.0; anything later compiles the PTX of the highest when it starts. Warnings
# of the host's part are g++'s to give, when it compiles the same files for the model.
ARCH      ?= 75 80 90
NVCCFLAGS := -std=c++20 -O3 -lineinfo -I. -MMD -MP -Werror all-warnings --expt-relaxed-constexpr \
             -DFMT_CONSTEVAL= -DFMT_USE_CONSTEXPR=1 $(foreach a,$(ARCH),-gencode arch=compute_$a,code=sm_$a) \
             -gencode arch=compute_$(lastword $(sort $(ARCH))),code=compute_$(lastword $(sort $(ARCH)))
ifeq ($(CUDA),1)
  LDLIBS  += -L$(dir $(shell command -v nvcc))../lib64 -lcudart_static -ldl -lrt
endif

ifdef SAN
  # Beside the sanitizers GCC 12 sees overflows in fmt that are not there; other builds stay strict.
  CXXFLAGS += -Wno-error
  KERNELFLAGS += -O2
  CXXFLAGS += -fsanitize=address,undefined -fno-omit-frame-pointer
  LDLIBS   += -fsanitize=address,undefined
endif
ifdef TSAN
  CXXFLAGS += -fsanitize=thread -Wno-tsan
  LDLIBS   += -fsanitize=thread
endif

LIB_SRC  := $(wildcard kernels/*.cpp kernels/cpu/*.cpp kernels/simt/*.cpp net/*.cpp data/*.cpp) \
            $(filter-out src/cli/main.cpp,$(wildcard src/*/*.cpp src/*/*/*.cpp))
ifneq ($(MACHINE),x86_64)
  LIB_SRC := $(filter-out %_avx512.cpp,$(LIB_SRC))
endif
# The CUDA kernels, compiled by g++ for the model of CUDA in kernels/simt: always there.
SIMT     := $(BUILD)/simt
CU_SRC   := $(wildcard kernels/cuda/*.cu)
LIB_OBJ  := $(LIB_SRC:%=$(BUILD)/%.o) $(CU_SRC:%=$(SIMT)/%.o) $(if $(filter 1,$(CUDA)),$(CU_SRC:%=$(BUILD)/cuda/%.o))
# The thread sanitizer has nothing to see in tests without threads of their own.
TEST_SRC := $(if $(TSAN),$(wildcard $(addprefix tests/,main.cpp $(addprefix test_,ring.cpp join.cpp faults.cpp loader.cpp \
              cpu_backend.cpp grad_reducer.cpp trainer.cpp program.cpp))),$(wildcard tests/*.cpp))
TEST_OBJ := $(patsubst %,$(BUILD)/%.o,$(TEST_SRC)) \
            $(if $(TSAN),,$(patsubst %,$(SIMT)/%.o,$(wildcard tests/*.cu)) $(SIMT)/tools/gemm_ladder.cu.o)
LADDER_OBJ := $(BUILD)/tools/gemm_ladder_main.cpp.o $(SIMT)/tools/gemm_ladder.cu.o \
              $(if $(filter 1,$(CUDA)),$(BUILD)/cuda/tools/gemm_ladder.cu.o)

all: trainer
trainer: $(BUILD)/trainer FORCE
	@cmp -s $< $@ || cp -f $< $@
gemm_ladder: $(BUILD)/gemm_ladder FORCE
	@cmp -s $< $@ || cp -f $< $@
FORCE:
$(BUILD)/trainer: $(BUILD)/src/cli/main.cpp.o $(LIB_OBJ)
	$(CXX) $(filter-out %.h,$^) -o $@ $(LDLIBS)
$(BUILD)/run_tests: $(TEST_OBJ) $(LIB_OBJ)
	$(CXX) $^ -o $@ $(LDLIBS)
$(BUILD)/gemm_ladder: $(LADDER_OBJ) $(filter-out $(BUILD)/net/% $(BUILD)/data/% $(BUILD)/src/%,$(LIB_OBJ))
	$(CXX) $^ -o $@ $(LDLIBS)

# The set-up of a fresh machine, before anything is compiled; a look that takes no time once done.
build/deps.ok: tools/deps.sh
	@mkdir -p build
	tools/deps.sh
	@touch $@
deps:
	tools/deps.sh

ifdef SAN
# What is tested is instrumented in full; the tests themselves would take twice as long to compile.
$(BUILD)/tests/%.o: CXXFLAGS += -fno-sanitize=undefined
# Unrolled tiles of registers: with -O2 as long to compile as a tenth of all the rest.
$(BUILD)/kernels/cpu/micro_%.o: KERNELFLAGS += -O1
endif
$(BUILD)/kernels/%.o $(SIMT)/%.o: CXXFLAGS += $(KERNELFLAGS)
# No fused multiply-add: crops and filter weights round alike on every machine, and as Pillow does.
$(BUILD)/data/%.o: CXXFLAGS += -ffp-contract=off
# Vectors for the start values, and the same ones on every machine.
$(BUILD)/src/model/start_values.cpp.o: CXXFLAGS += -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math
$(BUILD)/%_avx512.cpp.o: CXXFLAGS += $(ISA_AVX512)
$(BUILD)/%.cpp.o: %.cpp Makefile | build/deps.ok
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS) -c $< -o $@
# Make's own rule would compile a .cu.cpp as well, and without what is to be rewritten first.
%.o: %.cpp
# The kernels as C++: launches and shared memory rewritten by launch.sed, line by line in place. Every
# pointer is checked for the alignment of its type (kernels/simt/checks.cpp).
REWRITE = @mkdir -p $(@D) && { echo '\#line 1 "$<"'; sed -zEf kernels/simt/launch.sed $<; } > $@
$(SIMT)/%.cuh: %.cuh kernels/simt/launch.sed
	$(REWRITE)
$(SIMT)/%.cu.cpp: %.cu kernels/simt/launch.sed
	$(REWRITE)
$(SIMT)/%.o: CXXFLAGS += -g -fsanitize=alignment -Wno-unknown-pragmas
$(SIMT)/%.cu.o: $(SIMT)/%.cu.cpp Makefile | $(patsubst %,$(SIMT)/%,$(wildcard kernels/cuda/*.cuh)) build/deps.ok
	$(CXX) -I$(SIMT) $(CXXFLAGS) -c $< -o $@
# And for GPUs.
$(BUILD)/cuda/%.cu.o: %.cu Makefile | build/deps.ok
	@mkdir -p $(@D)
	nvcc $(NVCCFLAGS) -c $< -o $@
# The files that know whether there is CUDA; a file named after the choice is new when it changes.
KNOW_CUDA := $(patsubst %,$(BUILD)/%.o,kernels/backend.cpp src/cli/version.cpp tools/gemm_ladder_main.cpp)
$(KNOW_CUDA): $(BUILD)/with-cuda-$(CUDA)
$(KNOW_CUDA): CXXFLAGS += $(if $(filter 1,$(CUDA)),'-DCONVOY_CUDA="$(ARCH)"')
$(BUILD)/with-cuda-$(CUDA):
	@mkdir -p $(@D) && rm -f $(BUILD)/with-cuda-* && touch $@
.PRECIOUS: $(SIMT)/%.cu.cpp $(SIMT)/%.cuh
-include $(LIB_OBJ:.o=.d) $(TEST_OBJ:.o=.d) $(LADDER_OBJ:.o=.d) $(BUILD)/src/cli/main.cpp.d

# The tests of the whole program run the trainer beside them.
test: $(BUILD)/run_tests $(BUILD)/trainer
	$(if $(TSAN),TSAN_OPTIONS=suppressions=$(CURDIR)/tests/tsan.supp) $<
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

# Include rules: a file includes from its own room and from those before it in ROOMS; net, data and
# kernels know src/base alone, and not each other. Asio, CUDA and the kernels of one backend stay
# where they are wrapped.
ROOMS := src/base kernels data net src/config src/model src/train src/checkpoint src/job src/run \
         src/plan src/bench src/cli tests tools
layers:
	@grep -rnoP '^.include "\K(src/[a-z]+|[a-z]+)(?=/)' --include=*.h --include=*.c* $(ROOMS) | sort -u | \
	  awk -F: 'BEGIN { n = split("$(ROOMS)", rooms, " "); for (i = 1; i <= n; ++i) place[rooms[i]] = i } \
	    { match($$1, /^(src\/[a-z]+|[a-z]+)/); from = substr($$1, 1, RLENGTH); to = $$3; \
	      apart = place[from] > 1 && place[from] < 5 && place[to] != 1 && from != to; \
	      if (!(to in place) || place[to] > place[from] && from != "tests" || apart) \
	        { print $$1 ":" $$2 ": " from " may not include " to; bad = 1 } } END { exit bad }'
	@! grep -rlE '^.include <asio' --include=*.h --include=*.c* src kernels data tests tools
	@test "$$(grep -rlE '^.include <asio' net)" = net/asio.h
	@! grep -rnE '^.include (<cuda|"kernels/(cuda|simt)/)' --include=*.h --include=*.cpp src net data tools kernels/cpu
	@! grep -rnE '^.include <cuda' kernels tests | grep -v '^kernels/cuda/cuda.h:'
	@echo layers: ok

SOURCES = $(shell git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')
format:
	clang-format -i $(SOURCES)
format-check:
	clang-format --dry-run -Werror $(SOURCES)
lines:
	@git ls-files src net kernels data tools | xargs wc -l | tail -1
clean:
	rm -rf build trainer gemm_ladder
.PHONY: FORCE all test demo bench deps layers format format-check lines clean
