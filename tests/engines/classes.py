"""Copies a model with a head of random weights for two classes, and prints the probabilities of the classes
that `transformers` gives texts, in 32 bits.

    python classes.py MODEL COPY TEXT...
"""

import json
import pathlib
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

LABELS = ["dull", "bright"]
SEED = 21

[model, copy], texts = map(pathlib.Path, sys.argv[1:3]), sys.argv[3:]
disable_progress_bar()
shutil.copytree(model, copy)
config = json.loads((model / "config.json").read_text(encoding="utf-8"))
labels = {"id2label": dict(enumerate(LABELS)), "label2id": {label: n for n, label in enumerate(LABELS)}}
config |= {"architectures": ["Qwen3ForSequenceClassification"], **labels}
(copy / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
torch.manual_seed(SEED)
weights = load_file(model / "model.safetensors")
weights["score.weight"] = (torch.randn(len(LABELS), config["hidden_size"]) / 4).to(torch.bfloat16)
# Heads of transformers have no bias. SGLang's has one, which it draws where a model has none.
weights["score.bias"] = torch.zeros(len(LABELS), dtype=torch.bfloat16)
save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})

tokens = AutoTokenizer.from_pretrained(copy)
head = AutoModelForSequenceClassification.from_pretrained(copy, dtype=torch.float32).eval()
with torch.no_grad():
    for text in texts:
        logits = head(**tokens(text, return_tensors="pt")).logits[0]
        print(json.dumps(logits.softmax(-1).tolist()))
