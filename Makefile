# The build in the order that it needs: the agent first, then what embeds it.
GOARCH ?= $(shell go env GOARCH)
AGENT   = internal/agent/embed/bin/cloche-agent-linux-$(GOARCH)

.PHONY: build agent check test docs dist clean

build: agent ## the cloche binary, with the agent inside
	CGO_ENABLED=0 go build -ldflags "-s -w" -o bin/cloche ./cmd/cloche

agent: ## the small static agent that the binary embeds
	CGO_ENABLED=0 GOOS=linux GOARCH=$(GOARCH) go build -ldflags "-s -w -buildid=" -o $(AGENT) ./cmd/cloche-agent

test: ## what the README calls the test command
	CGO_ENABLED=0 go test -timeout 60m ./...

check: ## format, vet, layout, cross builds and lint: before each commit
	.ci/run check

docs: ## the pages of docs/cli
	go test ./internal/cli -update

dist: build ## a tarball to unpack over /usr/local
	rm -rf dist/tree && mkdir -p dist/tree/bin dist/tree/lib/systemd/system dist/tree/lib/systemd/user dist/tree/share/doc/cloche
	install -m 755 bin/cloche dist/tree/bin/cloche
	install -m 644 packaging/systemd/cloche.service dist/tree/lib/systemd/system/cloche.service
	install -m 644 packaging/systemd/cloche-user.service dist/tree/lib/systemd/user/cloche.service
	install -m 644 LICENSE README.md SECURITY.md dist/tree/share/doc/cloche
	tar -C dist/tree --owner=0 --group=0 --numeric-owner --sort=name -czf dist/cloche-linux-$(GOARCH).tar.gz .
	rm -rf dist/tree

clean:
	rm -rf bin dist $(AGENT)
