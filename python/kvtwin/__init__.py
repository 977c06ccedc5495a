"""kvtwin: a hierarchical KV cache for LLM serving, simulated and real, with one policy library."""

from kvtwin._core import __version__ as __version__
