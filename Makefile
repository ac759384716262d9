# Everything a contributor needs: `make demo` and `make test` set the machine up by themselves.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# Of `make fuzz`: calls of the helper, their seed, calls of each method in each race, and the time for each native target.
CALLS ?= 1000000
SEED ?= 1
ROUNDS ?= 1000
SECONDS ?= 60

.PHONY: help setup build demo test fuzz lint bench clean

help:
	@echo "make demo         one VM's life across the boundary, live"
	@echo "make test         all suites (as root: integration, security and end-to-end too)"
	@echo "make fuzz         more of it: CALLS=$(CALLS) SEED=$(SEED) on the sockets, ROUNDS=$(ROUNDS) of each race, SECONDS=$(SECONDS) on each parser (as root)"
	@echo "make bench        latencies and ratios"
	@echo "make build        protocols, native addon, TypeScript"
	@echo "make lint         formatter, linter, types, protocols"
	@echo "make clean        what building made"

setup:
	@scripts/setup.sh

build: setup
	@npm run --silent build

demo: build
	@node dist/test/demo/main.js

test: build
	@node scripts/test.mjs

fuzz: build
	@FUZZ_CALLS=$(CALLS) FUZZ_SEED=$(SEED) RACE_ROUNDS=$(ROUNDS) npx vitest run --project root test/fuzz test/security/hostile/races
	@native/fuzz/run.sh $(SECONDS)

bench: build
	@node dist/test/bench/main.js

lint: setup
	@npm run --silent build:proto
	@npm run --silent lint

clean:
	rm -rf build dist gen demo-out
