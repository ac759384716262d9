# Everything a contributor needs: `make demo` and `make test` set the machine up by themselves.
SHELL := /bin/bash
.DEFAULT_GOAL := help

.PHONY: help setup build demo test test-deploy lint bench clean

help:
	@echo "make demo         one VM's life across the boundary, live"
	@echo "make test         all suites (as root: integration, security and end-to-end too)"
	@echo "make test-deploy  the manifests' containers under crun (as root)"
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

test-deploy: build
	@npx vitest run --project deploy

bench: build
	@node dist/test/bench/main.js

lint: setup
	@npm run --silent build:proto
	@npm run --silent lint

clean:
	rm -rf build dist gen demo-out
