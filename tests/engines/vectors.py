"""Prints the vectors that `transformers` makes of texts: the last layer's normed hidden values of each
text's last token, with unit length, in 32 bits.

    python vectors.py MODEL TEXT...
"""

import json
import sys

import torch
from transformers import AutoModel, AutoTokenizer

folder, *texts = sys.argv[1:]
tokens = AutoTokenizer.from_pretrained(folder)
model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
with torch.no_grad():
    for text in texts:
        last = model(**tokens(text, return_tensors="pt")).last_hidden_state[0, -1]
        print(json.dumps((last / last.norm()).tolist()))
