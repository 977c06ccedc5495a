"""kvtwin inside SGLang: a storage back end for HiCache (storage.py)."""
