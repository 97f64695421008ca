"""Tests of replicas need Ray: pip install 'gossamer[ray,models,structured]'."""

import importlib.util

PACKAGES = ("ray", "openai", "psutil", "transformers", "llguidance")
if any(importlib.util.find_spec(name) is None for name in PACKAGES):
    collect_ignore_glob = ["test_*.py"]
