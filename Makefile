# `make demo` and `make test` are the two commands; each sets up what it needs.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_QUICK ?=
# More words for pytest when it runs the quick suite.
QUICK ?=
# The sample of `make mutants`, and more words for it.
SEED ?= 1
COUNT ?= 100
MUTANTS ?=
# What `make gpu-proof` is given: a folder of wheels where there is no network, and its own options.
WHEELS ?=
PROOF ?=
# Tests wait for processes half of their time. Each worker collects every test, so a multiple would cost large machines much.
WORKERS ?= $(shell expr $$(nproc) + 4)
PYTEST = $(RUN)/pytest -n $(WORKERS) --dist loadgroup --durations 10

.PHONY: delayed mutants prebuilt wheels always can-demo docs help demo test test-all quick rest soak matrix lint unit node gpu gpu-proof real kubelet consumers image python emulated meta proto bench setup clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | expand -t 12

setup: $(STAMP) ## Make the virtual environment with everything in it

$(STAMP): pyproject.toml .ci/constraints.txt .ci/make-venv .ci/prerequisites
	.ci/make-venv "$(PYTHON)" "$(VENV)"
	@touch $@

# An interpreter that is named is wanted, also where there is an environment of another one already.
ifneq ($(origin PYTHON),file)
ifneq ($(shell "$(PYTHON)" --version 2>&1),$(shell $(RUN)/python --version 2>&1))
$(STAMP): always
endif
endif

can-demo:
	@.ci/prerequisites "$(PYTHON)" "$(VENV)" demo

demo: can-demo $(STAMP) ## Play a pod's whole life against the daemon, as root or as an ordinary user
	$(RUN)/nodeplug demo

test: lint quick ## Run lint, types and the quick suite (what needs root or a package is skipped with its reason)

test-all: lint ## Run lint, types and every test that this machine can run but those of `make soak` and `make matrix`; `make consumers image` builds what more of them need
	NODEPLUG_EXAMPLES=many $(PYTEST) -m "not soak and not matrix"

quick: $(STAMP)
	$(PYTEST) -m quick $(QUICK)

# What the quick suite leaves out. Properties are tried again, with many more examples.
rest: $(STAMP)
	NODEPLUG_EXAMPLES=many $(PYTEST) -m "whole or consumers or hypothesis and quick"

delayed: $(STAMP) ## Run the quick suite while threads, programs, event loops and ends of namespaces are late at random, to find tests that rely on an order of events
	$(RUN)/python -m tests.delays -n $(WORKERS) --dist loadgroup --durations 10 -m quick

soak: $(STAMP) ## Run long lives, and other tests that cost most: two hours (none chosen is no failure)
	NODEPLUG_EXAMPLES=many $(RUN)/pytest -n $$(($$(nproc) + 2)) --dist loadgroup --durations 10 -m soak || [ $$? = 5 ]

matrix: $(STAMP) ## Run what needs other releases: of Debian and its Python, kubelet, containerd (an hour, 4 GB once; needs root)
	.ci/matrix

mutants: $(STAMP) ## Change the code in small ways and see whether tests notice (half a day; goes on where it stopped)
	$(RUN)/python -m tests.mutants --seed $(SEED) --count $(COUNT) --workers $(WORKERS) $(MUTANTS)

lint: $(STAMP) ## Check format, lint, types, layers, spelling
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .
	$(RUN)/mypy
	$(RUN)/lint-imports --no-cache
	$(RUN)/codespell supervisor plugins proto bin configs tests docs bench README.md CHANGELOG.md SECURITY.md

unit: $(STAMP) ## Run the tests of the quick suite that need nothing but Python: unit, protocol, meta
	$(PYTEST) -m quick tests/unit tests/protocol tests/meta

node: $(STAMP) ## Run the tests on a node: namespaces, mounts, sockets (without root, what needs none)
	$(PYTEST) tests/node

gpu: $(STAMP) ## Run the tests of the GPU plugin; on a machine with a card it runs there
	$(PYTEST) tests/gpu

gpu-proof: ## Prove on a real card what simulated ones cannot, in less than ten minutes (docs/gpu-hardware.md)
	.ci/gpu-proof "$(PYTHON)" "$(VENV)" "$(WHEELS)" $(PROOF)

real: $(STAMP) ## Run the tests against real consumers
	$(PYTEST) -m consumers

kubelet: ## Build the old kubelet for the matrix from Debian's source package, once (5 minutes, 2.5 GB meanwhile)
	.ci/build-kubelet

consumers: ## Build today's kubelet, control plane, containerd and CNI plugins for tests/real, once (15 minutes)
	.ci/build-consumers

image: ## Make the image of deploy/Containerfile for tests/real without a registry, once (three minutes, 2 GB; needs root)
	.ci/build-image

python: ## Bootstrap Debian 13 and its Python for the matrix, once (two minutes, 150 MB; needs root)
	.ci/build-python

emulated: $(STAMP) ## Run tests of links and cgroups on Debian's kernel, emulated (three quarters of an hour, 70 MB once; needs root, qemu-system-x86, cpio and kmod)
	.ci/emulated

meta: $(STAMP)
	$(RUN)/pytest tests/meta

docs: $(STAMP) ## Fill the generated parts of the pages from the code
	$(RUN)/python docs/generate.py

wheels: $(STAMP) ## Build the wheels into dist: the plain one, and one with compiled entrypoints per kind of machine (Debian 12's compilers)
	$(RUN)/python deploy/platform_wheel.py check
	$(RUN)/python -m hatchling build -d dist
	for machine in x86_64 aarch64; do NODEPLUG_WHEEL_MACHINE=$$machine $(RUN)/python -m hatchling build -t wheel -d dist || exit; done
	rm -rf dist/prebuilt

prebuilt: $(STAMP) ## List the sha256 of the compiled entrypoints anew, after a change of their source (Debian 12's compilers)
	$(RUN)/python deploy/platform_wheel.py

proto: $(STAMP) ## Generate supervisor/nodeplug/pb from proto/ (Python 3.11 or 3.12)
	$(RUN)/python proto/generate.py

bench: $(STAMP) ## Measure (needs root); prints tables, writes bench/results/latest.json, docs/performance.md and its picture
	$(RUN)/python -m bench $(if $(BENCH_QUICK),--quick)
	$(RUN)/python -m bench.claims --where-built $(if $(BENCH_QUICK),--quick)
	$(RUN)/python -m bench.extenders $(if $(BENCH_QUICK),--quick)
	$(RUN)/python -m bench.claimed $(if $(BENCH_QUICK),--quick)
	$(RUN)/python -m bench.reloading $(if $(BENCH_QUICK),--quick)
	$(RUN)/python -m bench.networks $(if $(BENCH_QUICK),--quick)
	$(RUN)/python -m bench.worst_inputs $(if $(BENCH_QUICK),--quick)
	$(RUN)/python -m bench.roads

clean: ## Remove what set-up and tests made
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
