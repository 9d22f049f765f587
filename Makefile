# The build in the order that it needs: the agent first, then what embeds it.
GOARCH ?= $(shell go env GOARCH)
AGENT   = internal/agent/embed/bin/cloche-agent-linux-$(GOARCH)

.PHONY: build agent test docs clean

build: agent ## the cloche binary, with the agent inside
	CGO_ENABLED=0 go build -ldflags "-s -w" -o bin/cloche ./cmd/cloche

agent: ## the small static agent that the binary embeds
	CGO_ENABLED=0 GOOS=linux GOARCH=$(GOARCH) go build -ldflags "-s -w -buildid=" -o $(AGENT) ./cmd/cloche-agent

test: ## what the README calls the test command
	CGO_ENABLED=0 go test ./...

docs: ## the pages of docs/cli
	go run ./cmd/cloche docs docs/cli

clean:
	rm -rf bin $(AGENT)
