# The two commands of the README are `make demo` and `make test`; each sets up what it needs, once.
MAKEFLAGS += --no-print-directory
SHELL := /bin/bash

.PHONY: build demo test soak bench eval eval-wordpage lint format fuzz deps clean help

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 16

build: deps  ## build/release/vlcache
	@tools/build.sh release vlcache

demo: build  ## a page, a few questions, answers with timings
	@tools/demo.sh build/release/vlcache

test: deps  ## everything CI checks: lint, unit, golden and end-to-end tests, sanitizers, fuzzers
	@tools/test.sh

soak: deps  ## rare faults, often: 1,000 writers killed, fault tests in rounds, every combination of policies, thousands of requests (some hours)
	@tools/soak.sh

bench: build  ## tokens/s beside the machine's limits
	@tools/bench.sh build/release/vlcache

eval: build  ## accuracy of tinydoc on 500 pages, beside transformers'
	@tools/eval.sh build/release/vlcache

eval-wordpage: build  ## accuracy over KV budget on a real language model that reads pages (installs PyTorch, once)
	@tools/wordpage/eval.sh

lint: deps  ## formatting, include layers, sizes, tests in no target
	@tools/lint.sh

format: deps  ## rewrite sources with clang-format
	@git ls-files '*.cc' '*.h' | xargs clang-format-14 -i

fuzz: deps  ## every parser, 60 s each
	@tools/fuzz.sh 60

deps:  ## Debian packages, if any is missing
	@tools/install_deps.sh

clean:  ## remove build/
	@rm -rf build
