# Everything a change needs: `make check`. It installs what is missing.

GO ?= go
# Versions of PostgreSQL that the tests start; the first is what most use.
PG_VERSIONS ?= 15 16 17 18
# What to test, and more flags for go test, as in: make test PKGS=./internal/slot TESTFLAGS=-v
PKGS ?= ./...
TESTFLAGS ?=

# One set of flags: another one builds all dependencies anew.
RACE := CGO_ENABLED=1 $(GO) test -race -shuffle=on -timeout 25m
TOOL := $(GO) tool -modfile=tools/go.mod

# The oldest NATS that walrelay supports; tools/nats/go.mod has the version.
OLDEST_NATS := bin/nats-server-oldest
# What `make test-matrix` runs on every version: the kills, the restarts of
# PostgreSQL and NATS, the takeovers, DDL, poison; what is confirmed (A01 to
# A06), order (A07, A63), the server's errors (A11), column types (A17) and
# bytes (A24), acknowledgements (A44, A45), leaders that step down (A58),
# consumers that are killed (A70); and that the servers are of the versions
# that were asked for.
MATRIX := A0[1-7]|A11|A17|A24|A44|A45|A58A63|A6[3-7]|A70|RelayKilled|PostgreSQLThatR|BrokerThat|TakesOver|Wakes|DDL|PoisonRowOf|IsTheOneThatIsNamed
MATRIX_PKGS := ./e2e ./inbox ./internal/slot ./internal/testenv

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: deps
deps: compiler postgres ## Install what the tests need: PostgreSQL, a C compiler

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

.PHONY: postgres
postgres:
	@$(GO) run ./internal/testenv/install $(PG_VERSIONS)

.PHONY: build
build: ## Build bin/walrelay
	$(GO) build -o bin/walrelay ./cmd/walrelay

.PHONY: test
test: deps ## Run all tests, with servers that are killed, under the race detector
	$(RACE) $(TESTFLAGS) $(PKGS)

# 15 and the oldest NATS are the floors together; with the NATS that is linked
# in, 15 is what `make test` runs. What talks to NATS alone need not be run on
# the others.
.PHONY: test-matrix
test-matrix: deps $(OLDEST_NATS) ## Run the core drills on every PostgreSQL and on the oldest NATS
	@echo "PostgreSQL 15, $$($(OLDEST_NATS) --version)"
	WALRELAY_TEST_PG=15 WALRELAY_TEST_NATS=$(CURDIR)/$(OLDEST_NATS) $(RACE) $(TESTFLAGS) -run '$(MATRIX)' $(MATRIX_PKGS) ./internal/publish
	@echo "PostgreSQL 16"
	WALRELAY_TEST_PG=16 $(RACE) $(TESTFLAGS) -run '$(MATRIX)' $(MATRIX_PKGS)
	@echo "PostgreSQL 17"
	WALRELAY_TEST_PG=17 $(RACE) $(TESTFLAGS) -run '$(MATRIX)' $(MATRIX_PKGS)
	@echo "PostgreSQL 18"
	WALRELAY_TEST_PG=18 $(RACE) $(TESTFLAGS) -run '$(MATRIX)' $(MATRIX_PKGS)

# It is built without cgo, as everything that no race detector looks at.
$(OLDEST_NATS): tools/nats/go.mod
	CGO_ENABLED=0 $(GO) build -modfile=tools/nats/go.mod -o $@ github.com/nats-io/nats-server/v2

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
