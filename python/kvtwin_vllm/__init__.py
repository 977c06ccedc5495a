"""kvtwin inside vLLM: a secondary tier of the offloading connector (tier.py)."""
