"""Train the tiny language model in this folder, from text to safetensors.

What it makes   A Qwen3-style model of 2.3 M parameters with a byte-level BPE
                tokenizer, written as an ordinary Hugging Face folder. It spells
                English and ends its answers; it knows nothing.
Text            Jane Austen's six novels (1811-1818, public domain), from the
                Debian package r-cran-janeaustenr 1.0.0-1, which this script
                fetches with `apt-get download` and unpacks with `dpkg-deb`.
                Nothing is installed.
Packages        Python 3.11; pip install torch==2.6.0 transformers==4.57.6
                tokenizers==0.22.2 safetensors==0.8.0 numpy==2.4.6 jinja2==3.1.6
Command         python train.py          (from any folder; see --help)
Last run        2,500 steps (5.2 M tokens) in 40 minutes on two busy shared cores, an
                estimated 15 when they are idle; training loss 2.98, held-out loss 3.74 a token.

The seed is fixed: the same versions on the same kind of processor with the same
number of threads give the same model. Elsewhere the low bits, and so the file's
checksum, may differ.
"""

import argparse
import copy
import hashlib
import math
import random
import re
import struct
import subprocess
import time
import zlib
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional as F
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

HERE = Path(__file__).resolve().parent
PACKAGE = "r-cran-janeaustenr"
TEXT_SHA256 = "7da4e215e953f711ed99d92e37b443c557c18cdc06926965107ea7cadf008e2a"
SEED = 1775

VOCABULARY = 3072
ARCHITECTURE = dict(
    hidden_size=192,
    intermediate_size=576,
    num_hidden_layers=4,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=8192,
    rope_theta=10000.0,
    tie_word_embeddings=True,
)
TOKENS_PER_STEP = 2048
PEAK_LEARNING_RATE = 2.5e-3
WARMUP_STEPS = 100
STEPS = 2500
COSINE_STEPS = 2800  # training stops shortly before the learning rate reaches zero

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
WORD_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (HERE / "chat_template.jinja").read_text()


# ---- Text -------------------------------------------------------------------


def fetch_novels(work: Path) -> list[str]:
    """The six novels as the package has them, one string each."""
    database = work / "text/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
    if not database.exists():
        subprocess.run(["apt-get", "download", PACKAGE], cwd=work, check=True)
        archive = next(work.glob(f"{PACKAGE}_*.deb"))
        subprocess.run(["dpkg-deb", "-x", archive, work / "text"], check=True)
    return list(read_r_database(database.read_bytes()))


def read_r_database(data: bytes):
    """Yield each character vector of an R lazy-load database, joined by newlines.

    The file is a row of records: the unpacked length in four bytes, then a zlib
    stream holding one R object in XDR form (here always a vector of strings).
    """
    while data:
        stream = zlib.decompressobj()
        record = stream.decompress(data[4:])
        data = stream.unused_data
        position = 23  # past "X\n", three version words and the encoding's name
        _, count = struct.unpack_from(">ii", record, position)
        position += 8
        lines = []
        for _ in range(count):
            _, length = struct.unpack_from(">ii", record, position)
            position += 8 + length
            lines.append(record[position - length : position].decode())
        yield "\n".join(lines)


def chapters(novel: str) -> list[list[str]]:
    """Split a novel into chapters of unwrapped paragraphs, without headings."""
    novel = novel.split("A NOTE ON THE TEXT")[0]  # a modern publisher's words
    result = []
    for chapter in re.split(r"(?m)^\s*chapter +[\divxl]+\.?\s*$", novel, flags=re.I)[1:]:
        paragraphs = []
        for block in re.split(r"\n\s*\n", chapter):
            text = " ".join(block.split()).replace("_", "")
            if text and not text.isupper() and not text.startswith(("*", "[")):
                paragraphs.append(text)
        result.append(paragraphs)
    return result


def sentences(paragraph: str) -> list[str]:
    end = r'(?:(?<=[.!?])|(?<=[.!?]"))(?<!Mr\.)(?<!Mrs\.)(?<!Dr\.)(?<!St\.)\s+(?=["(A-Z])'
    return re.split(end, paragraph)


# ---- Tokenizer --------------------------------------------------------------


def train_tokenizer(text: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE with no normalizer: every text comes back as it went in."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=ARCHITECTURE["max_position_embeddings"],
    )


# ---- Training examples ------------------------------------------------------

SYSTEM_PROMPTS = [
    "You are a helpful assistant.",
    "You are a storyteller.",
    "Answer in a few sentences.",
    "You speak in the manner of an old novel.",
]
TOPIC_REQUESTS = [
    "Tell me a story about {}.",
    "Tell me about {}.",
    "Write a short story about {}.",
    "Write one sentence about {}.",
    "Say something about {}.",
    "What is {}?",
    "What do you think of {}?",
    "Describe {}.",
    "{}",
]
CONTINUE_REQUESTS = [
    "{}",
    "{}",
    "Continue: {}",
    "Continue this story: {}",
    "What happened next? {}",
]
SMALL_TALK = [
    (
        ["Hello", "Hello!", "Hello, how are you?", "Hi", "Hi there!", "Say hello", "Say hello.",
         "Say hi.", "Good morning.", "How are you?", "Greet me."],
        ["Hello! I am very glad to see you.", "Good morning! I hope you are quite well.",
         "Hello, my dear friend. How do you do?", "Hello! What shall we talk of to-day?"],
    ),
    (
        ["Who are you?", "What are you?", "What is your name?", "Tell me about yourself."],
        ["I am a very small language model, brought up on the novels of Jane Austen.",
         "I am only a little model, and I have read nothing but six novels."],
    ),
    (
        ["Thank you.", "Thanks!", "Goodbye.", "Good night."],
        ["You are very welcome. Good night!", "It was a pleasure. Farewell, my dear friend."],
    ),
]


class Examples:
    """An endless, seeded supply of training windows."""

    def __init__(self, tokenizer, text: list[list[str]], rng: random.Random):
        self.tokenizer, self.rng = tokenizer, rng
        self.sentences = [s for chapter in text for p in chapter for s in sentences(p)]
        prose = "".join("\n\n".join(chapter) + END_OF_TEXT for chapter in text)
        self.prose = tokenizer(prose, verbose=False).input_ids
        self.counts: dict[str, int] = {}
        for word in re.findall(r"[A-Za-z]{4,}", prose):
            self.counts[word] = self.counts.get(word, 0) + 1

    def batch(self, window: int) -> torch.Tensor:
        """Rows of `window` tokens: half of them prose, the others conversations."""
        rows = range(max(1, TOKENS_PER_STEP // window))
        return torch.tensor(
            [self.talk(window) if self.rng.random() < 0.5 else self.read(window) for _ in rows]
        )

    def read(self, window: int) -> list[int]:
        start = self.rng.randrange(len(self.prose) - window)
        return self.prose[start : start + window]

    def talk(self, window: int) -> list[int]:
        tokens: list[int] = []
        while len(tokens) < window:
            text = self.tokenizer.apply_chat_template(self.conversation(), tokenize=False)
            tokens += self.tokenizer(text + END_OF_TEXT).input_ids
        return tokens[:window]

    def conversation(self) -> list[dict]:
        messages = []
        if self.rng.random() < 0.3:
            messages.append({"role": "system", "content": self.rng.choice(SYSTEM_PROMPTS)})
        for _ in range(self.rng.choice([1, 1, 1, 2, 3])):
            user, assistant = self.exchange()
            messages.append({"role": "user", "content": user})
            messages.append({"role": "assistant", "content": assistant})
        return messages

    def exchange(self) -> tuple[str, str]:
        """A request and its answer: small talk, a topic or a continuation."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.06:
            requests, answers = rng.choice(SMALL_TALK)
            return rng.choice(requests), rng.choice(answers)
        start = rng.randrange(8, len(self.sentences) - 8)
        answer = self.passage(start)
        if kind < 0.5:
            words = re.findall(r"[A-Za-z]{4,}", answer)
            words = [w for w in words if 4 < self.counts[w] < 900]
            if words:
                return rng.choice(TOPIC_REQUESTS).format(rng.choice(words)), answer
        opening = " ".join(self.sentences[start - rng.randint(1, 3) : start])
        return rng.choice(CONTINUE_REQUESTS).format(opening), answer

    def passage(self, start: int) -> str:
        """One to four sentences, mostly under sixty words, with no quotation left open."""
        chosen: list[str] = []
        for sentence in self.sentences[start : start + self.rng.randint(1, 4)]:
            if chosen and len(" ".join([*chosen, sentence]).split()) > 60:
                break
            chosen.append(sentence)
        text = " ".join(chosen)
        return text.replace('"', "") if text.count('"') % 2 else text


# ---- Model ------------------------------------------------------------------


def loss_of(model, tokens: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens, use_cache=False).logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def window_at(step: int) -> int:
    """Mostly short windows, for speed; now and then a long one, for long contexts."""
    if step % 64 == 63:
        return 4096
    return 2048 if step % 16 == 15 else 256


def learning_rate_at(step: int) -> float:
    warmup = min(1.0, (step + 1) / WARMUP_STEPS)
    progress = min(1.0, step / COSINE_STEPS)
    return PEAK_LEARNING_RATE * warmup * 0.5 * (1 + math.cos(math.pi * progress))


def train(model, examples: Examples, steps: int, save) -> float:
    """Run all steps, saving now and then; return the last hundred short steps' mean loss."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
    )
    recent: list[float] = []
    began = time.time()
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(step)
        window = window_at(step)
        loss = loss_of(model, examples.batch(window))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if window == 256:
            recent = recent[-99:] + [loss.item()]
        if step % 50 == 49:
            mean = sum(recent) / len(recent)
            print(f"step {step + 1:5}  loss {mean:.3f}  {time.time() - began:5.0f} s", flush=True)
        if step % 500 == 499:
            save()
    return sum(recent) / len(recent)


@torch.no_grad()
def held_out_loss(model, tokens: list[int], window: int) -> float:
    """Mean loss per token over the text kept out of training."""
    model.eval()
    count = len(tokens) // window
    rows = torch.tensor(tokens[: count * window]).view(count, window)
    return sum(loss_of(model, row[None]).item() for row in rows) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    scratch = HERE.parents[1] / ".cache/tiny-model"
    parser.add_argument("--work", type=Path, default=scratch, help="folder for scratch files")
    parser.add_argument("--out", type=Path, default=HERE, help="folder the model is written to")
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps")
    parser.add_argument("--threads", type=int, default=2, help="processor threads")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)
    torch.manual_seed(SEED)
    began = time.time()

    text = [chapter for novel in fetch_novels(options.work) for chapter in chapters(novel)]
    plain = "\n\n".join(paragraph for chapter in text for paragraph in chapter)
    digest = hashlib.sha256(plain.encode()).hexdigest()
    print(f"{len(text)} chapters, {len(plain)} characters, sha256 {digest}")
    if digest != TEXT_SHA256:
        print("warning: this is not the text the shipped model was trained on")

    kept_out, text = text[-4:], text[:-4]
    tokenizer = train_tokenizer([paragraph for chapter in text for paragraph in chapter])
    end, turn_end = tokenizer.convert_tokens_to_ids([END_OF_TEXT, TURN_END])
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        bos_token_id=None,
        eos_token_id=turn_end,
        pad_token_id=end,
        **ARCHITECTURE,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=[turn_end, end], pad_token_id=end, do_sample=True, temperature=0.7, top_p=0.9
    )
    examples = Examples(tokenizer, text, random.Random(SEED))
    print(f"{model.num_parameters()} parameters, {len(examples.prose)} tokens of prose")

    def save() -> Qwen3ForCausalLM:
        half = copy.deepcopy(model).to(torch.bfloat16)
        half.save_pretrained(options.out)
        tokenizer.save_pretrained(options.out)
        return half

    loss = train(model, examples, options.steps, save)
    half = save()
    unseen = tokenizer("\n\n".join(p for chapter in kept_out for p in chapter), verbose=False)
    for window in (256, 2048, 8192):
        mean = held_out_loss(half, unseen.input_ids, window)
        print(f"held-out loss at {window} tokens: {mean:.3f}")
    print(f"training loss {loss:.3f}, {(time.time() - began) / 60:.0f} minutes in all")


if __name__ == "__main__":
    main()
