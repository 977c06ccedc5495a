"""kvtwin inside SGLang. docs/sglang.md describes how to install it."""
