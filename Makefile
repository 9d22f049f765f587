# The build in the order that it needs: the agent and the executable of sandboxes first, then what embeds them.
GOARCH  ?= $(shell go env GOARCH)
AGENT    = internal/agent/embed/bin/cloche-agent-linux-$(GOARCH)
SANDBOX  = internal/engine/gvisor/embed/bin/cloche-sandbox-linux-$(GOARCH)
BIN      = bin/cloche
# Where no tag is known, the program takes its version from Go's build information.
VERSION := $(shell git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null)
LDFLAGS  = -s -w$(if $(VERSION), -X main.release=$(VERSION))
PYTHON   = python3

.PHONY: build agent sandbox help check fmt lint generate docs site recording test e2e dist clean

build: agent sandbox ## build bin/cloche with the agent and the executable of sandboxes inside
	CGO_ENABLED=0 go build -tags cloche_embed -ldflags "$(LDFLAGS)" -o $(BIN) ./cmd/cloche

agent: ## build the small static agent that the binary embeds
	CGO_ENABLED=0 GOOS=linux GOARCH=$(GOARCH) go build -ldflags "-s -w -buildid=" -o $(AGENT) ./cmd/cloche-agent

sandbox: ## build and compress the executable of sandboxes on gVisor that the binary embeds
	CGO_ENABLED=0 GOOS=linux GOARCH=$(GOARCH) go build -ldflags "-s -w -buildid=" -o $(SANDBOX) ./cmd/cloche-sandbox
	CGO_ENABLED=0 go run ./internal/engine/gvisor/embed/pack $(SANDBOX) $(SANDBOX).zst
	rm $(SANDBOX)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / {printf "%-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

check: ## before each commit: format, vet, layout, cross builds, lint and the fast tests
	.ci/run check

fmt: ## format Go, and Python where ruff is installed
	gofmt -w $$(git ls-files '*.go')
	@if command -v ruff >/dev/null; then cd sdk/python && ruff format . && ruff check --fix .; else echo "ruff is not installed: Python is not formatted"; fi

lint: agent ## lint Go
	.ci/run lint

generate: docs ## write all generated files: Go, Python and docs
	CGO_ENABLED=0 go generate ./...
	cd sdk/python && $(PYTHON) tools/unasync.py && $(PYTHON) tools/wire.py
	CGO_ENABLED=0 go run ./.ci/pictures

docs: agent ## write docs/cli, docs/policy.schema.json and the table in docs/engines.md
	CGO_ENABLED=0 go test ./internal/cli ./internal/policy ./internal/daemon -run '^(TestDocsAreFresh|TestSchemaIsFresh|TestTableOfEngines)$$' -update

site: ## build the documentation site in dist/site (needs packaging/site/requirements.txt)
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build -q -f packaging/site/mkdocs.yml

recording: build ## record the terminal at the top of README.md
	go run ./.ci/recording -cloche $(BIN)

test: agent ## run all tests
	CGO_ENABLED=0 go test -timeout 60m ./...

e2e: agent ## run the tests of the built binary
	CGO_ENABLED=0 go test -p 1 -timeout 90m ./test/e2e ./test/attack

dist: build ## build a tarball to unpack over /usr/local
	rm -rf dist/tree && mkdir -p dist/tree/bin dist/tree/lib/systemd/system dist/tree/lib/systemd/user dist/tree/share/doc/cloche
	install -m 755 $(BIN) dist/tree/bin/cloche
	install -m 644 packaging/systemd/cloche.service dist/tree/lib/systemd/system/cloche.service
	install -m 644 packaging/systemd/cloche-user.service dist/tree/lib/systemd/user/cloche.service
	install -m 644 LICENSE README.md SECURITY.md dist/tree/share/doc/cloche
	tar -C dist/tree --owner=0 --group=0 --numeric-owner --sort=name -czf dist/cloche-linux-$(GOARCH).tar.gz .
	rm -rf dist/tree

clean: ## remove what builds leave
	rm -rf bin dist $(AGENT) sdk/python/build sdk/python/dist sdk/python/*.egg-info
