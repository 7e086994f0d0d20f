# SPDX-License-Identifier: Apache-2.0
# Two words matter to a newcomer: demo and test. `make help` lists the others.

GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
BINARY := bin/natplane
# Tests make network namespaces of their own; nothing of the machine's network is touched.
TEST_TIMEOUT ?= 10m

.PHONY: help build demo test test-cluster lint bench fuzz image clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort

build: ## build bin/natplane
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w -X main.stamped=$(VERSION)" -o $(BINARY) ./cmd/natplane

demo: build ## show the main job in a network of namespaces (root)
	@hack/need.sh nft
	@$(GO) run ./testenv/demo -binary $(BINARY) -manifests deploy/examples

test: ## all tests that need no API server (root, under five minutes)
	@hack/need.sh nft conntrack
	$(GO) test -timeout $(TEST_TIMEOUT) ./...

lint: ## gofmt, vet, staticcheck
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

fuzz: ## a minute of fuzzing for each target
	@for p in $$($(GO) list ./...); do for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz'); do \
		$(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime 60s $$p || exit 1; done; done

bench: ## measure, and print the tables of docs/performance.md (root)
	@hack/need.sh nft
	@$(GO) run ./testenv/bench

clean: ## remove what make built
	rm -rf bin
