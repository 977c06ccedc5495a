#!/usr/bin/env python3
"""Makes a small model with random weights for vLLM's server: small_model.py KIND FOLDER

Run in the environment of `tools/engine-env vllm-server`; tools/engine-server does that. The bytes of the model depend on
nothing but this file and the packages of the environment. Answers make no sense, but each depends on the whole prompt.
"""

import hashlib
import json
import os
import random
import shutil
import sys
from pathlib import Path

VOCABULARY = 8192
LAYERS = 8
COMMON = dict(vocab_size=VOCABULARY, hidden_size=512, intermediate_size=1536, num_hidden_layers=LAYERS, num_attention_heads=8,
              num_key_value_heads=4, head_dim=64, max_position_embeddings=32768, bos_token_id=0, eos_token_id=1)


def every_fourth_full(other):
    return ["full_attention" if i % 4 == 3 else other for i in range(LAYERS)]


# Class of the configuration in the package transformers, and its arguments.
KINDS = {
    "llama": ("LlamaConfig", dict(COMMON, tie_word_embeddings=False)),
    "window": ("Gemma3TextConfig", dict(COMMON, tie_word_embeddings=True, sliding_window=128, query_pre_attn_scalar=64,
                                        layer_types=every_fourth_full("sliding_attention"), pad_token_id=0)),
    "state": ("Qwen3NextConfig", dict(COMMON, tie_word_embeddings=False, num_experts=4, num_experts_per_tok=2,
                                      moe_intermediate_size=256, shared_expert_intermediate_size=256, decoder_sparse_step=1,
                                      mlp_only_layers=[], linear_num_value_heads=8, linear_num_key_heads=4,
                                      linear_key_head_dim=64, linear_value_head_dim=64, linear_conv_kernel_dim=4,
                                      layer_types=every_fourth_full("linear_attention"))),
}


def invented_text():
    """Lines of invented words, a few of which are frequent, as in a language."""
    draw = random.Random(1)
    words = ["".join(draw.choice("bdfgklmnprstvz") + draw.choice("aeiou") for _ in range(draw.randint(1, 4))) for _ in range(9000)]
    for _ in range(6000):
        yield " ".join(words[int(len(words) * draw.random() ** 3)] for _ in range(20)) + ".\n"


def save_tokenizer(folder):
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(invented_text(), trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<s>", "</s>"], initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)


def draw_weights(model):
    """Replaces the random tensors of the model. The constant ones, those of norms, stay."""
    import numpy as np
    import torch

    for name, tensor in model.named_parameters():
        if tensor.numel() > 1 and tensor.min() == tensor.max():
            continue
        drawn = np.frombuffer(hashlib.shake_128(name.encode()).digest(2 * tensor.numel()), np.uint16)
        unit = (drawn.astype(np.float32) - 32767.5) / 32768 * np.float32(3**0.5)  # variance 1
        scale = 1.0 if "embed_tokens" in name else tensor.shape[-1] ** -0.5 if tensor.ndim > 1 else 0.02
        if "lm_head" in name:
            scale *= 8  # greedy answers have no ties in bfloat16
        tensor.data.copy_(torch.from_numpy(unit * np.float32(scale)).reshape(tensor.shape))


def make(kind, folder):
    import torch
    import transformers

    part = folder.with_name(f"{folder.name}.{os.getpid()}")  # others may make the same model
    part.mkdir(parents=True)
    save_tokenizer(part)
    name, arguments = KINDS[kind]
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, name)(**arguments), dtype=torch.bfloat16)
    draw_weights(model)
    model.save_pretrained(part)
    facts = {"kind": kind, "source": source_digest(), "parameters": sum(tensor.numel() for tensor in model.parameters())}
    (part / "made.json").write_text(json.dumps(facts), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)


def source_digest():
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def is_made(kind, folder):
    """Whether this version of this file has made the model."""
    made = folder / "made.json"
    if not made.is_file():
        return False
    facts = json.loads(made.read_text(encoding="utf-8"))
    return (facts["kind"], facts["source"]) == (kind, source_digest())


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]))
