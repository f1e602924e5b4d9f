# checks.mk — fuzzing, include rules, the count of lines.
# Each target for FUZZ_SECONDS; what crashed it is left in build/fuzz.
FUZZ_SECONDS := 20
FUZZ_SRC := $(wildcard data/sources/*.cpp src/base/*.cpp) data/order.cpp \
            $(addprefix data/images/,bitmap.cpp decode.cpp jpeg.cpp tiff.cpp) net/control/wire.cpp net/control/tls.cpp \
            $(addprefix src/checkpoint/,meta.cpp safetensors.cpp torch_file.cpp torch_names.cpp pickle.cpp) $(wildcard src/config/*.cpp) \
            src/session/rank_json.cpp $(wildcard src/model/*.cpp src/model/layers/*.cpp) \
            tests/fuzz/fuzz.cpp
FUZZ_OBJ := $(FUZZ_SRC:%=build/fuzz/%.o)
build/fuzz/%.o: % $(RULES) | $(READY)
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

# Include rules: a file includes from its own room and from those before it in ROOMS; net, data and
# kernels know src/base alone, and not each other. Asio, CUDA and the kernels of one backend stay
# where they are wrapped.
ROOMS := src/base kernels data net src/config src/model src/step src/checkpoint src/session src/page src/run \
         src/report src/plan src/bench src/cli src/mini tests tools
# What net/ring includes of net/control, which includes nothing of net/ring.
RING_USES := ids|job_status|join_options|joining|limits|membership|roster|tls|wire
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
	@# The calls that these pages list: each named line holds the function's name.
	@sed -nE 's/^\| `(.*::)?(\w+)` \| (\S+):([0-9]+) .*/\2 \3 \4/p' src/README.md net/elastic.md | while read -r name file line; do \
	  sed -n "$${line}p" $$file | grep -qw "$$name" || { echo "table of calls: $$file:$$line is not $$name"; exit 1; }; done
	@echo layers: ok

# Every line has readers who pay for it: without tests there shall be no more lines than BUDGET, which only falls. A change
# may need up to SLACK more until others fall. The Makefile and its parts do not count.
BUDGET := 50372
SLACK  := 200
lines:
	@git ls-files src net kernels data tools ':!tools/make' ':!*.jpg' ':!*.png' | xargs wc -l | sed '/ total$$/d' | sort -rn | \
	  awk '{ n = split($$2, at, "/"); room = at[1] (n > 2 ? "/" at[2] : ""); lines[room] += $$1; all += $$1 } \
	    NR <= 5 { largest = largest "\n" $$0 } \
	    END { for (room in lines) printf "%6d  %s\n", lines[room], room | "sort -k2"; close("sort -k2"); \
	          printf "%6d  of $(BUDGET)\n", all; if (all <= $(BUDGET)) exit; \
	          print "lines: " all - $(BUDGET) " more than the ceiling (BUDGET in the Makefile) allows. The ceiling keeps the whole " \
	                "small enough to be read.\nPlease remove as many lines as your change adds: what nothing needs, or what is said " \
	                "twice. The five largest files:" largest; \
	          if (all <= $(BUDGET) + $(SLACK)) { print "A change may add up to $(SLACK) lines, so this one passes."; exit } \
	          print "A change may add up to $(SLACK) lines. This is more, so it fails."; exit 1 }'
