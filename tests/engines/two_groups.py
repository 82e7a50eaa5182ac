"""Copies the tiny model as a Llama: without the norms of queries and keys, which a Llama has not.

A Llama of vLLM's may have sliding windows in some layers, and so two groups of KV; its flags say so.
"""

import pathlib
import shutil
import sys

from safetensors.torch import load_file, save_file

[source, target] = map(pathlib.Path, sys.argv[1:])
shutil.copytree(source, target)
weights = load_file(target / "model.safetensors")
kept = {name: of for name, of in weights.items() if "q_norm" not in name and "k_norm" not in name}
save_file(kept, target / "model.safetensors", {"format": "pt"})
