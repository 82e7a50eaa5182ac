"""Copies a model of tiny_model.py to one that writes white space only where a form lets nothing else come.

    python without_blanks.py MODEL COPY

A grammar lets JSON have any white space, of which a model of random weights would write thousands of
tokens. One of the hidden values of the copy is the same for all tokens: no layer reads or changes it, and
it makes tokens of white space unlikely. All other answers are as random as before.
"""

import json
import pathlib
import shutil
import sys

from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

# Place of the value that is always the same.
PLACE = 0
# The place's weight in the last norm, and in the output of tokens of white space.
NORM, OUTPUT = 16.0, -16.0


def blanks(tokenizer):
    """The ids of tokens that are white space and nothing else."""
    texts = {id: tokenizer.decode([id], skip_special_tokens=False) for id in tokenizer.get_vocab().values()}
    return [id for id, text in texts.items() if text and not text.strip()]


def main():
    [model, copy] = map(pathlib.Path, sys.argv[1:])
    shutil.copytree(model, copy)
    weights = load_file(model / "model.safetensors")
    output = weights["model.embed_tokens.weight"].clone()
    output[:, PLACE] = 0
    output[blanks(Tokenizer.from_file(str(model / "tokenizer.json"))), PLACE] = OUTPUT
    weights["model.embed_tokens.weight"][:, PLACE] = 1
    for name, weight in weights.items():
        if name.endswith(("layernorm.weight", "o_proj.weight", "down_proj.weight")):
            # Of a norm its value, of a projection the row that is added to it.
            weight[PLACE] = 0
    weights["model.norm.weight"][PLACE] = NORM
    weights["lm_head.weight"] = output
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((model / "config.json").read_text(encoding="utf-8")) | {"tie_word_embeddings": False}
    (copy / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
