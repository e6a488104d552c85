# Everything a change needs: `make check`, and `make test-matrix` for versions. It installs what is missing.

GO ?= go
# Versions of PostgreSQL that the tests start; the first is what most use.
PG_VERSIONS ?= 15 16 17 18
# What to test, and more flags for go test, as in: make test PKGS=./internal/slot TESTFLAGS=-v
PKGS ?= ./...
TESTFLAGS ?=

# One set of flags: another one builds all dependencies anew.
RACE := CGO_ENABLED=1 $(GO) test -race -shuffle=on -timeout 40m
TOOL := $(GO) tool -modfile=tools/go.mod

# The oldest NATS that walrelay supports; tools/nats/go.mod has the version.
OLDEST_NATS := bin/nats-server-oldest
# The core drills, by the names of their tests: what runs on every PostgreSQL is
# a relay that is killed, taken over from, and woken; PostgreSQL that restarts,
# crashes and shuts down (A06); what is confirmed (A01 to A05); order (A07); the
# server's errors (A11); column types (A17), bytes (A24), DDL and poison. What
# runs on every NATS is that and a broker that is stopped and killed, acks that
# come late or never (A44, A45), leaders that step down (A58), a hole in the
# middle (A63), and consumers that get an event twice (A64) or wake (A66).
DRILLS_PG := A0[1-7]|A11|A17|A24|RelayKilledAt|PostgreSQLThatR|TakesOverFrom|WakesAfter|DDL|PoisonRowOf|IsTheOneThatIsNamed
DRILLS_NATS := A44|A45|A58A63|A63|A64|A66|BrokerThat
DRILLS := ./e2e ./internal/slot ./internal/testenv

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: deps
deps: compiler node pgbouncer promtool chromium postgres ## Install what the tests need: PostgreSQL, PgBouncer, promtool, Chromium, a C compiler, Node

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

# For examples/node, and npm also brings PostgreSQL. npm is asked for first: where
# Node is not Debian's it has npm in it, and Debian's npm cannot be installed.
.PHONY: node
node:
	@if ! command -v npm >/dev/null || ! command -v node >/dev/null; then \
		if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
			echo "make: examples/node needs Node 18 or newer with npm (Debian: nodejs npm)" >&2; \
			exit 1; \
		fi; \
		echo "installing nodejs and npm with apt-get"; \
		apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nodejs npm >/dev/null; \
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

# Judges the metrics, the alerts and the dashboard's queries.
.PHONY: promtool
promtool:
	@if ! command -v promtool >/dev/null; then \
		if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
			echo "make: some tests need promtool (Debian: prometheus)" >&2; \
			exit 1; \
		fi; \
		echo "installing prometheus with apt-get, for promtool"; \
		apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus >/dev/null; \
	fi

# Opens the status page.
.PHONY: chromium
chromium:
	@if ! command -v chromium >/dev/null; then \
		if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
			echo "make: some tests need Chromium (Debian: chromium)" >&2; \
			exit 1; \
		fi; \
		echo "installing chromium with apt-get"; \
		apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
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

.PHONY: test-matrix
test-matrix: matrix-15 matrix-16 matrix-17 matrix-18 ## Run the core drills on every PostgreSQL and on the oldest NATS

# The floors together: `make test` runs 15 with the NATS that is linked in.
.PHONY: matrix-15
matrix-15: deps $(OLDEST_NATS)
	@echo "core drills on PostgreSQL 15 and $$($(OLDEST_NATS) --version)"
	@WALRELAY_TEST_PG=15 WALRELAY_TEST_NATS=$(CURDIR)/$(OLDEST_NATS) \
		$(RACE) $(TESTFLAGS) -run '$(DRILLS_PG)|$(DRILLS_NATS)' $(DRILLS) ./internal/publish ./inbox

.PHONY: matrix-16 matrix-17 matrix-18
matrix-16 matrix-17 matrix-18: matrix-%: deps
	@echo "core drills on PostgreSQL $* and the NATS that is linked in"
	@WALRELAY_TEST_PG=$* $(RACE) $(TESTFLAGS) -run '$(DRILLS_PG)' $(DRILLS)

# Without the race detector, which would take the memory that is measured.
.PHONY: drill-long
drill-long: deps ## Run the drills that `make test` shortens at full length: a million rows, minutes of outage
	DRILL_LONG=1 $(GO) test -count=1 -timeout 60m $(TESTFLAGS) -run 'A09|A10|A19|A59TwoMinutes|A69Many|AnEmbeddedJetStreamKilled|ALargeTransaction' ./e2e ./internal/retention

# It is built without cgo, as everything that no race detector looks at.
$(OLDEST_NATS): tools/nats/go.mod
	CGO_ENABLED=0 $(GO) build -modfile=tools/nats/go.mod -o $@ github.com/nats-io/nats-server/v2

# How long drills are run, or the one drill that is to be run again.
DRILL_TIME ?= 30m
DRILL_SEED ?= 0

.PHONY: drill
drill: deps ## Drill faults in pairs with fresh seeds for DRILL_TIME=30m; DRILL_SEED repeats one
	@$(GO) run ./e2e/faults/drill -time $(DRILL_TIME) -seed $(DRILL_SEED)

# Without cgo, so that what is compiled here serves the test of the Dockerfile,
# which builds without cgo too.
.PHONY: lint
lint: export CGO_ENABLED := 0
lint: ## Run the analysers
	$(GO) mod tidy -diff
	$(GO) vet ./...
	@unformatted="$$($(TOOL) gofumpt -extra -l .)"; if [ -n "$$unformatted" ]; then \
		echo "not formatted, run make format:" >&2; echo "$$unformatted" >&2; exit 1; \
	fi
	$(TOOL) golangci-lint run --allow-parallel-runners ./...
	cd tools/compose && $(GO) mod tidy -diff && $(GO) vet ./... && \
		$(GO) tool -modfile=$(CURDIR)/tools/go.mod golangci-lint run --allow-parallel-runners ./...

.PHONY: format
format: ## Format the code
	$(TOOL) golangci-lint fmt ./...

.PHONY: check
check: lint test ## All that has to pass before a change is shared

# Not part of check: what it finds depends on what else the machine does.
.PHONY: bench bench-quick bench-check
bench: postgres ## Measure everything, ten minutes; writes bench/out
	$(GO) run ./bench -suite full -out bench/out
bench-quick: postgres ## Measure the main cases side by side, less than two minutes
	$(GO) run ./bench -suite quick
bench-check: postgres ## Compare the main ratios with those of bench/expected.json
	$(GO) run ./bench -suite quick -compare bench/expected.json

.PHONY: demo
demo: postgres ## Watch orders survive crashes, on throw-away servers
	$(GO) run ./cmd/walrelay demo

.PHONY: demo-page
demo-page: postgres ## Watch a relay's status page, until Ctrl-C
	$(GO) run ./cmd/walrelay demo --page
