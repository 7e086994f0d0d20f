# SPDX-License-Identifier: Apache-2.0
# Two words matter to a newcomer: demo and test. `make help` lists the others.

GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
BINARY := bin/natplane
# Tests make network namespaces of their own; nothing of the machine's network is touched.
TEST_TIMEOUT ?= 10m
CLUSTER_TEST_TIMEOUT ?= 15m
IMAGE ?= natplane:$(or $(VERSION),dev)
# What builds images: buildah or docker.
BUILDER ?= buildah

.PHONY: help build demo test test-image test-cluster lint bench bench-cluster fuzz image clean

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

# Where nested containers are forbidden, the tests say so and try the same without a runtime and its seccomp profile.
test-image: build ## build the image and run it with the security context of the DaemonSet, in a container (root; installs buildah and crun)
	@hack/need.sh nft buildah crun
	$(GO) test -tags image -count=1 -v -timeout $(TEST_TIMEOUT) -run '^TestImage' ./deploy

# The API server is compiled without cgo, and so must be its tests, or its thousand packages are compiled twice.
test-cluster: build ## tests with a real API server, which is built once and cached (root; a quarter of an hour the first time)
	@hack/need.sh nft conntrack buildah crun
	CGO_ENABLED=0 $(GO) -C testenv/apiserver run ./build
	CGO_ENABLED=0 $(GO) -C testenv/apiserver test -timeout $(CLUSTER_TEST_TIMEOUT) ./internal/... ./build ./check
	$(GO) test -tags cluster -timeout $(CLUSTER_TEST_TIMEOUT) ./agent/cluster
	$(GO) test -tags cluster -timeout $(CLUSTER_TEST_TIMEOUT) -run '^TestCluster' ./agent
	$(GO) test -tags cluster,image -count=1 -timeout $(CLUSTER_TEST_TIMEOUT) -run '^TestCluster' ./deploy

lint: ## gofmt, vet, staticcheck
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags cluster,image ./agent/... ./deploy/... ./testenv/...
	$(GO) tool staticcheck -tags cluster,image ./...

fuzz: ## a minute of fuzzing for each target
	@for p in $$($(GO) list ./...); do for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz'); do \
		$(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime 60s $$p || exit 1; done; done

bench: ## measure, and print the tables of docs/performance.md (root)
	@hack/need.sh nft
	@$(GO) run ./testenv/bench

bench-cluster: ## measure against a real API server with up to 10,000 Services (root; ten minutes)
	@hack/need.sh nft
	@$(GO) run -tags cluster ./testenv/bench -only cluster

image: build ## container image of the static binary
	@hack/need.sh $(BUILDER)
	$(BUILDER) build --build-arg VERSION=$(VERSION) -f deploy/Dockerfile -t $(IMAGE) .

clean: ## remove what make built
	rm -rf bin
