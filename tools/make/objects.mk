# objects.mk — from sources to objects: units, the CUDA emulator, flags of single folders.
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
src/step_HOLDS := src/config src/model src/step
src/run_HOLDS   := src/checkpoint src/session src/page src/run
src/cli_HOLDS   := src/plan src/report src/bench src/cli
FOLDERS    := net src/run src/cli data src/step src/base kernels/cpu kernels/simt
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
  TESTS ?= ring shared_sum link messenger join faults ask_health strangers loader remote cpu_backend grad_reducer \
           trainer program
endif
TEST_SRC := $(if $(TESTS),tests/main.cpp tests/call_hooks.cpp $(TESTS:%=tests/test_%.cpp),$(filter-out %/kit_main.cpp,$(wildcard tests/*.cpp)))
# Units of tests by the first letter of their subjects: [ab] holds tests/test_augment.cpp and so on. test_mini.cpp
# includes a program that uses Asio in its own way.
TEST_UNITS := t p s m ef r ab c l gh ijk no d uvwxyz
TEST_UNIT  := $(if $(TESTS)$(filter 0,$(UNITY)),$(TEST_SRC),tests/main.cpp tests/call_hooks.cpp tests/test_mini.cpp $(TEST_UNITS:%=tests/unit-%.cpp))
LADDER   := $(addprefix tests/lab/,gemm_ladder.cu.o cublas.cu.o bandwidth_ladder.cu.o)
TEST_OBJ := $(patsubst %,$(BUILD)/%.o,$(TEST_UNIT)) \
            $(if $(TSAN),,$(patsubst %,$(SIMT)/%.o,$(wildcard tests/*.cu)) $(LADDER:%=$(SIMT)/%) $(SIMT)/src/mini/mini.cu.o) \
            $(if $(filter 1,$(CUDA)),$(addprefix $(GPU)/,tests/mma_kernels.cu.o $(LADDER)))
LADDERS  := $(BUILD)/gemm_ladder $(BUILD)/bandwidth_ladder
LADDER_MAINS := $(LADDERS:$(BUILD)/%=$(BUILD)/tests/lab/%_main.cpp.o)
LADDER_OBJ := $(LADDER:%=$(SIMT)/%) $(if $(filter 1,$(CUDA)),$(LADDER:%=$(GPU)/%))

# What a binary has (kernels/backend.cpp) is what is linked into it. A file named after the choice
# is new when the choice changes.
CHOICE := $(BUILD)/$(subst $() ,-,$(notdir $(GPU)) $(CUDA) $(UNITY) $(TESTS)).choice
$(CHOICE):
	@mkdir -p $(@D) && rm -f $(BUILD)/*.choice && touch $@

RULES := Makefile tools/make/objects.mk
STATIC_LIBS := build/static-$(MACHINE)
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
$(BUILD)/data/%.o $(BUILD)/tests/lab/music.cpp.o: CXXFLAGS += -ffp-contract=off
$(BUILD)/kernels/%.o: CXXFLAGS += $(KERNELFLAGS)
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
$(BUILD)/%.cpp.o: %.cpp $(RULES) | $(READY)
	$(compile)
$(BUILD)/%.cpp.o: $(BUILD)/%.cpp $(RULES) | $(READY)
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
$(SIMT)/%.cu.o: $(SIMT)/%.cu.cpp $(RULES) | $(patsubst %,$(SIMT)/%,$(wildcard kernels/cuda/*.cuh)) $(READY)
	$(call say,SIMT)
	$(Q)$(CXX) -I$(SIMT) $(CXXFLAGS) -c $< -o $@
define compile_cuda
$(call say,NVCC)
$(Q)nvcc $(NVCCFLAGS) -c $< -o $@
endef
$(GPU)/%.cu.o: %.cu $(RULES) | $(READY)
	$(compile_cuda)
$(GPU)/%.cu.o: $(GPU)/%.cu $(RULES) | $(READY)
	$(compile_cuda)
.PRECIOUS: $(SIMT)/%.cu.cpp $(SIMT)/%.cuh $(BUILD)/%/unit.cpp $(BUILD)/tests/unit-%.cpp
-include $(patsubst %.o,%.d,$(MAIN_OBJ) $(LIB_OBJ) $(SIMT_OBJ) $(TEST_OBJ) $(LADDER_OBJ) $(LADDER_MAINS) \
    $(BUILD)/tools/spectrograms.cpp.o $(BUILD)/tests/lab/music.cpp.o)

