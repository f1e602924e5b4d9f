# release.mk — programs for other machines: static, arm64, the GPU kit, an installed one, a package.
# The same objects with static libraries. Without CUDA=1 on the command line it is for CPUs and has
# no dynamic dependency; with it, glibc and the driver are what remains. The linker would warn that
# getaddrinfo needs glibc's shared libraries: it does not for files and DNS (tests/static.sh).
STATIC_CUDA := $(if $(filter file,$(origin CUDA)),0,$(CUDA))
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
NOT_ON_ARM64 := mini simt mma gemm_ladder bandwidth_ladder graph tensor_cores bench_kernels moments mixed bf16 cublas \
                program netns shard_modes
arm64:
	tools/deps.sh qemu-user-static
	$(MAKE) MACHINE=aarch64 static build/release-aarch64/static/run_tests
	CONVOY_TEST_DEVICE=cpu qemu-aarch64-static build/release-aarch64/static/run_tests \
	  -tce='program*,health: the command*,*in bf16*,trace: copies beside*' -sfe='$(subst $() ,$(comma),$(NOT_ON_ARM64:%=*test_%.cpp))'
# The GPU kit: all that tests/lab/gpu_check.sh needs on a machine that has a GPU, its driver and glibc. CUDA=0 makes one
# for its emulator alone.
KIT_MAINS := $(addprefix $(STATIC)/main/,trainer run_tests gemm_ladder bandwidth_ladder)
$(STATIC)/main/trainer.o: $(MAIN_OBJ)
$(STATIC)/main/run_tests.o: $(BUILD)/tests/main.cpp.o
$(addsuffix .o,$(filter %_ladder,$(KIT_MAINS))): $(STATIC)/main/%.o: $(BUILD)/tests/lab/%_main.cpp.o
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

# help2man makes the manual page from --help-all; its date is that of the commit.
PROGRAM := trainer
PREFIX  := /usr/local
BIN      = $(DESTDIR)$(PREFIX)/bin/trainer
DOC      = $(DESTDIR)$(PREFIX)/share/doc/convoy
MAN      = $(DESTDIR)$(PREFIX)/share/man/man1/trainer.1
install deb wheel: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)
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
wheel: static
	@tools/deploy/wheel $(VERSION) $(MACHINE)
VERSION = $(shell sed -n 's/.*kVersion = "\(.*\)".*/\1/p' src/cli/version.cpp)

