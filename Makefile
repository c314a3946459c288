# The two commands of the README are `make demo` and `make test`; each sets up what it needs, once.
MAKEFLAGS += --no-print-directory
SHELL := /bin/bash

.PHONY: build install uninstall demo test check readme tsan soak bench eval eval-wordpage clients lint format fuzz deps deps-test clean help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 16

build: deps  ## build/release/vlcache (and vlcache-video, which it runs), file by file: for daily work
	@tools/build.sh release vlcache

install: build  ## program, man page, completions and systemd unit into PREFIX (/usr/local); DESTDIR as usual
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" tools/install.sh

uninstall:  ## remove the files of the last installation; same PREFIX and DESTDIR
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" tools/install.sh --remove

demo:  ## a page, a few questions, answers with timings; leaves the program in build/release
	@tools/demo.sh

test: deps-test  ## everything CI checks: lint, unit, golden and end-to-end tests, sanitizers, fuzzers
	@tools/test.sh

check: deps-test  ## before every commit: lint of changed files, quick tests
	@tools/check.sh

readme: build  ## the documented commands that take longer than a test may (eval, tune reuse; a minute), with their output
	@cd tests/e2e && VLCACHE_SLOW_COMMANDS=1 VLCACHE=$(CURDIR)/build/release/vlcache python3 -m unittest -v -k test_slow_ones test_documented

tsan: deps-test  ## unit tests of all that threads share under ThreadSanitizer; writes tools/tsan-passed (8 minutes)
	@tools/tsan.sh

soak: deps-test  ## rare faults, often: 1,000 writers killed, fault tests in rounds, every combination of policies, thousands of requests (some hours)
	@tools/soak.sh

bench: build  ## tokens/s beside the machine's limits
	@tools/bench.sh build/release/vlcache

eval: build  ## accuracy of tinydoc on 500 pages, beside transformers'
	@studies/eval.sh build/release/vlcache

eval-wordpage: build  ## accuracy over KV budget on a real language model that reads pages (installs PyTorch, once)
	@studies/wordpage/eval.sh

clients: build  ## programs of today (openai, litellm, langchain, ...) against serve on tinydoc (installs them, once)
	@python3 tools/clients/run.py

lint: deps-test  ## formatting, include layers, sizes, tests in no target
	@tools/lint.sh

format: deps-test  ## rewrite sources with clang-format
	@git ls-files '*.cc' '*.h' | xargs clang-format-14 -i

fuzz: deps-test  ## every parser, 60 s each
	@tools/fuzz.sh 60

deps:  ## Debian packages that building and running need, if any is missing
	@tools/install_deps.sh build

deps-test:  ## and what tests need
	@tools/install_deps.sh build test

clean:  ## remove build/
	@rm -rf build
