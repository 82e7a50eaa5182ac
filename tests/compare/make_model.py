"""Makes a model folder without weights: what a proxy needs of a model, and nothing more.

usage: make_model.py FOLDER

The folder has a `config.json` of a small Llama, a byte-level BPE tokenizer of 32,000 entries
trained on the text that comes with Python (its library, documentation and tests), a chat template
in the manner of Llama 3, and `words.txt`: words that are exactly one token, at the beginning of a
text and after a space, so that N of them are a prompt of N tokens. Needs the package `tokenizers`.
"""

import json
import pathlib
import sys
import sysconfig

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCABULARY = 32_000
CORPUS_MAX_BYTES = 40 << 20
WORDS_MAX = 4_096
CONTEXT_TOKENS = 131_072
BOS, EOT = "<|begin_of_text|>", "<|eot_id|>"
SPECIAL = [BOS, "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", EOT]

# Contractions, words with what stands before them, numbers of up to three digits, punctuation,
# line breaks, spaces: the pieces that Llama 3 splits text into before merging.
SPLIT = "|".join([
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    r"[^\r\n\p{L}\p{N}]?\p{L}+",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])

CHAT_TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}"
    "{{- message.content | trim + '<|eot_id|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)


def corpus():
    """Texts of Python's own library, up to a bound; sorted, so that equal Pythons give equal models."""
    left = CORPUS_MAX_BYTES
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*")):
        if path.suffix not in {".py", ".txt", ".rst", ".html"} or "site-packages" in path.parts:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue  # Some test files are in other encodings on purpose.
        yield text
        left -= len(text)
        if left < 0:
            return


def train():
    """A byte-level BPE tokenizer."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def single_token_words(tokenizer):
    """Lower-case words that are one token with a space before them and without, most frequent first."""
    words = []
    for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1]):
        word = token[1:]
        if token[0] != "\u0120" or not (2 <= len(word) <= 12 and word.isascii() and word.isalpha() and word.islower()):
            continue
        if len(tokenizer.encode(word).ids) == 1 and len(tokenizer.encode(" " + word).ids) == 1:
            words.append(word)
    return words[:WORDS_MAX]


def check(tokenizer, words):
    """Fails where a prompt made of the words is not as long as it should be."""
    prompt = " ".join(words[i * 37 % len(words)] for i in range(4_000))
    length = len(tokenizer.encode(prompt).ids)
    if length != 4_000 or len(words) < 1_000:
        sys.exit(f"make_model.py: 4000 words make {length} tokens, {len(words)} words found")


def main(folder):
    """Writes the folder; `words.txt` last, so that its presence says that all is there."""
    tokenizer = train()
    words = single_token_words(tokenizer)
    check(tokenizer, words)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {text: tokenizer.token_to_id(text) for text in SPECIAL}
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    files = {
        "config.json": {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama",
            "vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": CONTEXT_TOKENS,
            "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16,
            "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu", "rms_norm_eps": 1e-5,
            "rope_theta": 500_000.0, "tie_word_embeddings": True, "attention_bias": False,
            "torch_dtype": "bfloat16", "bos_token_id": ids[BOS], "eos_token_id": ids[EOT],
        },
        "generation_config.json": {"bos_token_id": ids[BOS], "eos_token_id": ids[EOT]},
        "special_tokens_map.json": {"bos_token": BOS, "eos_token": EOT},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONTEXT_TOKENS,
            "add_bos_token": False, "bos_token": BOS, "eos_token": EOT, "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", "attention_mask"], "chat_template": CHAT_TEMPLATE,
            "added_tokens_decoder": {str(number): {"content": text, **flags} for text, number in ids.items()},
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (folder / "words.txt").write_text("\n".join(words) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]))
