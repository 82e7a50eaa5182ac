"""Makes a chat model that real engines load on a CPU: 1.3 million random weights in 3 MB.

    python tiny_model.py MODEL ADAPTER

Writes what a Hugging Face model folder has, tokenizer and chat template included, and a LoRA
adapter for it, without downloading anything. All is the same on every run with the same Python.
"""

import json
import pathlib
import sys
import sysconfig

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils.logging import disable_progress_bar

LAYERS = 2
HIDDEN = 128
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 32
VOCABULARY = 8192
CONTEXT = 8192
SEED = 20
ADAPTER_RANK = 8

# Wider than a model that is to be trained would have: greedy answers do not fall into one token
# for ever, and differ by prompt, so that a mix-up of KV shows.
WEIGHT_RANGE = 0.25

END_OF_TEXT, START_OF_TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""

# Enough text for the vocabulary, and always there: Python's own library.
CORPUS_BYTES = 4_000_000


def corpus():
    """Sources of the standard library, in a fixed order."""
    size = 0
    for path in sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        yield text
        size += len(text)
        if size >= CORPUS_BYTES:
            return


def tokenizer():
    """A byte-level tokenizer, to which no text is unknown."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT, START_OF_TURN, END_OF_TURN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(corpus(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=trained,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TURN,
        pad_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def model(tokens):
    """A Qwen3 of random weights."""
    torch.manual_seed(SEED)
    ids = {
        "bos_token_id": tokens.bos_token_id,
        "eos_token_id": tokens.eos_token_id,
        "pad_token_id": tokens.pad_token_id,
    }
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=CONTEXT,
        initializer_range=WEIGHT_RANGE,
        tie_word_embeddings=True,
        **ids,
    )
    made = Qwen3ForCausalLM(config).to(torch.bfloat16).eval()
    made.generation_config = GenerationConfig(**ids)
    return made


def save_adapter(base, folder):
    """A LoRA adapter of random weights, strong enough to change greedy answers."""
    targets = ("q_proj", "v_proj")
    layers = [(name, layer) for name, layer in base.named_modules() if name.endswith(targets)]
    weights = {}
    for name, layer in layers:
        shapes = {"A": (ADAPTER_RANK, layer.in_features), "B": (layer.out_features, ADAPTER_RANK)}
        for side, shape in shapes.items():
            weight = torch.randn(shape) * WEIGHT_RANGE
            weights[f"base_model.model.{name}.lora_{side}.weight"] = weight.to(torch.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, str(folder / "adapter_model.safetensors"))
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "inference_mode": True,
        "r": ADAPTER_RANK,
        "lora_alpha": 2 * ADAPTER_RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(targets),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def main():
    [folder, adapter] = map(pathlib.Path, sys.argv[1:])
    disable_progress_bar()
    tokens = tokenizer()
    tokens.save_pretrained(folder)
    made = model(tokens)
    made.save_pretrained(folder)
    save_adapter(made, adapter)


if __name__ == "__main__":
    main()
