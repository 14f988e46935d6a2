# SPDX-License-Identifier: Apache-2.0
# Every target prepares what it needs; what it prepares is cached outside the tree.
CACHE ?= $(or $(RINGFENCE_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ringfence)
PYTHON := $(CACHE)/venv/bin/python
CLANG ?= clang

PROTOS := enforcer/api/enforcer.proto $(wildcard deviceplugin/api/*.proto)
PROTO_PY := $(PROTOS:.proto=_pb2.py)
BPF_OBJECTS := $(patsubst %.bpf.c,%.bpf.o,$(wildcard bpf/*.bpf.c))

.PHONY: generate
generate: $(PROTO_PY) $(BPF_OBJECTS)

%_pb2.py: %.proto
	$(PYTHON) -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. $<

bpf/%.bpf.o: bpf/%.bpf.c $(wildcard bpf/include/*.h)
	$(CLANG) -target bpf -mcpu=v3 -O2 -g -Wall -Wextra -Werror -D__TARGET_ARCH_x86 -Ibpf/include -c $< -o $@
