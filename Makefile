# Everything a change needs: `make check`. It installs what is missing.

GO ?= go
# Versions of PostgreSQL that the tests start; the first is what most use.
PG_VERSIONS ?= 15 18
# What to test, and more flags for go test, as in: make test PKGS=./internal/slot TESTFLAGS=-v
PKGS ?= ./...
TESTFLAGS ?=

# One set of flags: another one builds all dependencies anew.
RACE := CGO_ENABLED=1 $(GO) test -race -shuffle=on -timeout 25m
TOOL := $(GO) tool -modfile=tools/go.mod

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: deps
deps: compiler pgbouncer postgres ## Install what the tests need: PostgreSQL, PgBouncer, a C compiler

# The race detector is linked by cgo.
.PHONY: compiler
compiler:
	@if ! printf '#include <stdlib.h>\n' | "$$($(GO) env CC)" -x c -E - >/dev/null 2>&1; then \
		if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
			echo "make: the race detector needs a C compiler and the C library's headers (Debian: gcc libc6-dev)" >&2; \
			exit 1; \
		fi; \
		echo "installing gcc and libc6-dev with apt-get"; \
		apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc libc6-dev >/dev/null; \
	fi

# A pooler that relays must not be led through.
.PHONY: pgbouncer
pgbouncer:
	@if ! command -v pgbouncer >/dev/null && ! [ -x /usr/sbin/pgbouncer ]; then \
		if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
			echo "make: some tests need PgBouncer (Debian: pgbouncer)" >&2; \
			exit 1; \
		fi; \
		echo "installing pgbouncer with apt-get"; \
		apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends pgbouncer >/dev/null; \
	fi

.PHONY: postgres
postgres:
	@$(GO) run ./internal/testenv/install $(PG_VERSIONS)

.PHONY: build
build: ## Build bin/walrelay
	$(GO) build -o bin/walrelay ./cmd/walrelay

.PHONY: test
test: deps ## Run all tests, with servers that are killed, under the race detector
	$(RACE) $(TESTFLAGS) $(PKGS)

.PHONY: lint
lint: ## Run the analysers
	$(GO) mod tidy -diff
	$(GO) vet ./...
	@unformatted="$$($(TOOL) gofumpt -extra -l .)"; if [ -n "$$unformatted" ]; then \
		echo "not formatted, run make format:" >&2; echo "$$unformatted" >&2; exit 1; \
	fi
	$(TOOL) golangci-lint run --allow-parallel-runners ./...

.PHONY: format
format: ## Format the code
	$(TOOL) golangci-lint fmt ./...

.PHONY: check
check: lint test ## All that has to pass before a change is shared

.PHONY: demo
demo: postgres ## Watch orders survive crashes, on throw-away servers
	$(GO) run ./cmd/walrelay demo
