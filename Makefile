# SPDX-License-Identifier: Apache-2.0
# Every target prepares what it needs; what it prepares is cached outside the tree.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
CACHE ?= $(or $(RINGFENCE_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ringfence)
# One place for all, however it was named.
export RINGFENCE_CACHE := $(CACHE)
BIN := $(CACHE)/venv/bin
PYTHON := $(BIN)/python
CLANG ?= $(or $(shell command -v clang clang-20 clang-19 clang-18 clang-17 clang-16 clang-15 \
	clang-14 | head -n 1),clang)

BPF_ARCH ?= x86
# Its headers, by the names of the distribution: the machine's own, or those to compile for another.
BPF_TUPLE := $(if $(filter arm64,$(BPF_ARCH)),aarch64,x86_64)-linux-gnu

PROTOS := $(wildcard enforcer/api/*.proto enforcer/imagestore/*.proto deviceplugin/api/*.proto)
PROTO_PY := $(PROTOS:.proto=_pb2.py)
BPF_OBJECTS := $(patsubst %.bpf.c,%.bpf.o,$(wildcard bpf/*.bpf.c))

# A step prepares what the next one needs; what can run side by side does so inside a step.
.NOTPARALLEL:
# A generator that failed leaves no half of a file that the next run would take for whole.
.DELETE_ON_ERROR:

# Distribution packages and the virtual environment.
.PHONY: prepare
prepare $(PYTHON):
	tests/testbed/prepare packages venv

.PHONY: generate
generate: $(PROTO_PY) $(BPF_OBJECTS)

$(PROTO_PY) $(BPF_OBJECTS): | $(PYTHON)

%_pb2.py: %.proto
	$(PYTHON) -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. $<

# The compiler's level; another one makes another build of the same programs.
OPTIMISE ?= -O2

# The kernel's types are ours (bpf/include/kernel.h); only its uapi headers are the machine's.
bpf/%.bpf.o: bpf/%.bpf.c $(wildcard bpf/include/*.h)
	$(CLANG) -target bpf -mcpu=v3 $(OPTIMISE) -g -Wall -Wextra -Wno-unused-parameter -Werror \
		-D__TARGET_ARCH_$(BPF_ARCH) -ffile-prefix-map=$(CURDIR)=. -fdebug-compilation-dir=. \
		-Ibpf/include -idirafter /usr/include/$(BPF_TUPLE) -idirafter /usr/$(BPF_TUPLE)/include \
		-c $< -o $@

# What must hold before every commit. Tracked files only: `git add` comes first.
.PHONY: check
check: prepare generate
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTHON) -m tests.check.tree c | xargs -0r $(BIN)/clang-format --dry-run -Werror
	$(PYTHON) -m tests.check.tree shell | xargs -0r shellcheck
	$(PYTHON) -m tests.check.licences
	$(PYTHON) -m tests.check.chart
	$(PYTHON) -m tests.check.configuration

# Every tier of tests. The kernels it needs are built first, on the first run, and not beside tests.
.PHONY: test
test: prepare generate
	needs=$$($(PYTHON) -m tests.tiers --needs $(TIERS)) && tests/testbed/prepare $$needs
	$(PYTHON) -m tests.tiers $(TIERS)

# What takes too long for every change: the enforcer killed 200 times under load, on both kernels.
.PHONY: soak
soak: prepare generate
	needs=$$($(PYTHON) -m tests.tiers --soak --needs $(TIERS)) && tests/testbed/prepare $$needs
	$(PYTHON) -m tests.tiers --soak $(TIERS)

# What the gate and the ledger cost: in the nanoseconds of this machine, and as ratios within one run
# of the virtual node. What the device plugin costs on a large node, with what this machine can at best.
# What a scrape takes, what the tracing tools add to a call. What the hook adds to a process, with and
# without it in turns.
.PHONY: bench
bench: prepare generate
	$(PYTHON) -m tests.bench.decide
	$(PYTHON) -m tests.bench.gate
	$(PYTHON) -m tests.bench.enforcer
	$(PYTHON) -m tests.bench.plugin
	$(PYTHON) -m tests.bench.scrape
	tests/testbed/run --timeout 900 -- python -m tests.bench.trace
	$(PYTHON) -m tests.bench.trace hipsnoop
	$(PYTHON) -m tests.hook.bench

# Two pods on one simulated GPU, on a kernel with dmem and on one without.
.PHONY: demo
demo: prepare generate
	$(BIN)/ringfence demo

# The container image as dist/ringfence-*.tar, with its bill of materials beside it. IMAGE="--debug"
# for the flavour with a shell and BCC, IMAGE="--arch arm64" for the other architecture.
.PHONY: image
image: prepare
	$(PYTHON) -m image $(IMAGE)

# The pages of docs/ as a site.
.PHONY: site
site: prepare
	$(BIN)/mkdocs build --strict --quiet --site-dir dist/site
