# make          build ./trainer                     make demo    two ranks train the built-in set
# make test     build and run the tests             make deps    install what is missing (apt)
# make bench    the speed tables                    make layers  check the include rules
# make format   clang-format in place               make lines   count lines
# Options: SAN=1 (address, undefined behaviour)  TSAN=1 (threads)  CUDA=0|1  ARCH=…
VARIANT := $(if $(SAN),san,$(if $(TSAN),tsan,release))
BUILD   := build/$(VARIANT)
MACHINE := $(shell uname -m)

# AVX2 is the floor on x86-64; files named *_avx512.cpp are chosen at run time.
ISA        := $(if $(filter x86_64,$(MACHINE)),-march=x86-64-v3)
ISA_AVX512 := -march=x86-64-v4 -mprefer-vector-width=512

# Debug information costs build time and memory: -g1 keeps line numbers for traces.
CXX      := g++
CXXFLAGS := -std=c++20 $(if $(SAN)$(TSAN),-O1,-O2) -g1 -Wall -Wextra -Werror -I. -isystem /usr/include/opencv4 -MMD -MP -pthread $(ISA)
KERNELFLAGS := -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math
LDLIBS   := -lboost_context -lopencv_imgcodecs -lopencv_imgproc -lopencv_core -ljpeg -lfmt -lcrypto -lpthread

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

LIB_SRC  := $(wildcard kernels/*.cpp kernels/cpu/*.cpp kernels/simt/*.cpp net/*.cpp data/*.cpp src/base/*.cpp src/layers/*.cpp) \
            $(filter-out src/main.cpp,$(wildcard src/*.cpp))
ifneq ($(MACHINE),x86_64)
  LIB_SRC := $(filter-out %_avx512.cpp,$(LIB_SRC))
endif
# The CUDA kernels, compiled by g++ for the model of CUDA in kernels/simt: always there.
CU_SRC   := $(wildcard kernels/cuda/*.cu)
LIB_OBJ  := $(LIB_SRC:%=$(BUILD)/%.o) $(CU_SRC:%=$(BUILD)/%.simt.o)
# The thread sanitizer has nothing to see in tests without threads of their own.
TEST_SRC := $(if $(TSAN),$(wildcard $(addprefix tests/,main.cpp $(addprefix test_,ring.cpp join.cpp faults.cpp loader.cpp \
              cpu_backend.cpp grad_reducer.cpp trainer.cpp program.cpp))),$(wildcard tests/*.cpp))
TEST_OBJ := $(patsubst %,$(BUILD)/%.o,$(TEST_SRC)) $(patsubst %,$(BUILD)/%.simt.o,$(wildcard tests/*.cu))

all: trainer
trainer: $(BUILD)/trainer FORCE
	@cmp -s $< $@ || cp -f $< $@
FORCE:
$(BUILD)/trainer: $(BUILD)/src/main.cpp.o $(LIB_OBJ)
	$(CXX) $(filter-out %.h,$^) -o $@ $(LDLIBS)
$(BUILD)/run_tests: $(TEST_OBJ) $(LIB_OBJ)
	$(CXX) $^ -o $@ $(LDLIBS)

# The set-up of a fresh machine, before anything is compiled; a look that takes no time once done.
build/deps.ok: tools/deps.sh
	@mkdir -p build
	tools/deps.sh
	@touch $@
deps:
	tools/deps.sh

$(BUILD)/kernels/%.o: CXXFLAGS += $(KERNELFLAGS)
# No fused multiply-add: crops and filter weights round alike on every machine, and as Pillow does.
$(BUILD)/data/%.o: CXXFLAGS += -ffp-contract=off
# Vectors for the start values, and the same ones on every machine.
$(BUILD)/src/start_values.cpp.o: CXXFLAGS += -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math
$(BUILD)/%_avx512.cpp.o: CXXFLAGS += $(ISA_AVX512)
$(BUILD)/%.cpp.o: %.cpp Makefile | build/deps.ok
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS) -c $< -o $@
# Plain CUDA but for the launches, which kernels/simt/launch.sed turns into C++. Every pointer is
# checked for the alignment of its type (kernels/simt/checks.cpp).
$(BUILD)/%.cu.simt.cpp: %.cu kernels/simt/launch.sed
	@mkdir -p $(@D)
	@{ echo '#line 1 "$<"'; sed -zEf kernels/simt/launch.sed $<; } > $@
$(BUILD)/%.cu.simt.o: CXXFLAGS += -g -fsanitize=alignment
$(BUILD)/%.cu.simt.o: $(BUILD)/%.cu.simt.cpp Makefile | build/deps.ok
	$(CXX) $(CXXFLAGS) -c $< -o $@
.PRECIOUS: $(BUILD)/%.cu.simt.cpp
-include $(LIB_OBJ:.o=.d) $(TEST_OBJ:.o=.d) $(BUILD)/src/main.cpp.d

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

# Include rules. NO: files of folder $(2) must not include a path that starts with $(1).
NO = ! grep -rnP '^.include "($(1))' $(2)
layers:
	@$(call NO,src/(?!base/)|data|net|kernels|tests|tools,src/base)
	@$(call NO,src/(?!base/)|data|net|tests|tools,kernels)
	@$(call NO,src/(?!base/)|kernels|net|tests|tools,data)
	@$(call NO,src/(?!base/)|kernels|data|tests|tools,net)
	@$(call NO,tests|tools,src)
	@! grep -rlE '^.include <asio' --include=*.h --include=*.c* src kernels data tests tools
	@test "$$(grep -rlE '^.include <asio' net | sort | tr '\n' ' ')" = "net/asio.h " || test ! -e net/asio.h
	@! grep -rlE '^.include <cuda_' --include=*.h --include=*.cpp src net data tests tools
	@echo layers: ok

SOURCES = $(shell git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')
format:
	clang-format -i $(SOURCES)
format-check:
	clang-format --dry-run -Werror $(SOURCES)
lines:
	@git ls-files src net kernels data tools | xargs wc -l | tail -1
clean:
	rm -rf build trainer
.PHONY: FORCE all test demo bench deps layers format format-check lines clean
