"""kvtwin inside SGLang: a storage back end for HiCache (storage.py; docs/engines.md), and a tree core that takes its victims
from kvtwin's policies (tree_core.py; docs/sglang.md)."""
