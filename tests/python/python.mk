# SPDX-License-Identifier: Apache-2.0
# The wheel, and the tests of the Python package: of the checkout, and of the wheel in an
# environment of its own. Included by the top Makefile.

PYTHON    ?= python3
PY_SOURCE := $(wildcard python/*.* python/stayput/*)
WHEEL     := $(B)/wheel
VENV      := $(B)/venv
INSTALLED := $(B)/venv-installed

# What builds the wheel. The one thing here that may have to be fetched, once.
$(VENV)/ready: python/pyproject.toml | $(B)/.gitignore
	$(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/pip install -q --disable-pip-version-check 'setuptools>=77'
	touch $@

# What it carries is there when it is made first, and then seen when it changes.
$(WHEEL)/ready: $(VENV)/ready $(PY_SOURCE) include/stayput.h \
		$(wildcard $(B)/libstayput*.so $(B)/stayput) | all
	rm -rf $(WHEEL) python/build python/*.egg-info
	STAYPUT_BUILD=$(abspath $(B)) $(VENV)/bin/pip wheel -q --disable-pip-version-check \
		--no-build-isolation --no-deps -w $(WHEEL) ./python
	rm -rf python/build python/*.egg-info
	touch $@

wheel: all $(WHEEL)/ready

$(INSTALLED)/ready: $(WHEEL)/ready
	$(PYTHON) -m venv --clear $(INSTALLED)
	$(INSTALLED)/bin/pip install -q --disable-pip-version-check --no-index $(WHEEL)/*.whl
	touch $@

$(B)/test_python $(B)/test_python_wheel: tests/python/run.py | $(B)/.gitignore
	ln -sf $(abspath $<) $@

# Under a sanitizer the interpreter would have to be built with it. Without venv or network
# the tests of the wheel are skipped; one that cannot be built or installed fails.
ifeq ($(SAN),)
python: all fakecuda $(B)/test_python $(B)/test_python_wheel
	@$(MAKE) -s $(VENV)/ready >$(B)/venv.log 2>&1 || { cat $(B)/venv.log; rm -rf $(INSTALLED); }
	@[ ! -e $(VENV)/ready ] || $(MAKE) -s $(INSTALLED)/ready
else
python:
endif

PY_LINTED := python tests/python tests/gpu/python_torch.py

lint-python: $(VENV)/ready
	$(VENV)/bin/pip install -q --disable-pip-version-check mypy ruff
	$(VENV)/bin/ruff check -q --config python/pyproject.toml $(PY_LINTED)
	$(VENV)/bin/ruff format -q --check --config python/pyproject.toml $(PY_LINTED)
	cd python && $(abspath $(VENV))/bin/mypy

.PHONY: wheel lint-python
