"""Reads answers with vLLM's parsers, as its server does, whole and streamed.

The first line names vLLM's parsers. The file that is given holds a question a line; each gets a line
of JSON. The tokenizer is one of
bytes, with the markers of the answer's families as tokens of their own.
"""

import json
import os
import re
import sys

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser.parser_manager import ParserManager
from vllm.reasoning import _REASONING_PARSERS_TO_REGISTER as REASONING
from vllm.tool_parsers import _TOOL_PARSERS_TO_REGISTER as TOOLS

# Texts that vocabularies have as one token: tags without attributes, and words in brackets.
TOKEN = re.compile(r"<[^<>\s=\"]+>|\[/?[A-Z_]+\]")
# Tokens that parsers want to exist, whether or not an answer has them.
ALWAYS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<assistant>", "[TOOL_CALLS]",
          "<response>", "</response>"]


def tokenizer(markers):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    own = Tokenizer(models.BPE({letter: at for at, letter in enumerate(letters)}, []))
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    own.decoder = decoders.ByteLevel()
    texts = {token for marker in [*markers, *ALWAYS] for token in TOKEN.findall(marker)}
    own.add_tokens([AddedToken(text, normalized=False) for text in sorted(texts)])
    return PreTrainedTokenizerFast(tokenizer_object=own, clean_up_tokenization_spaces=False)


def known(names, registry):
    if not names[0]:
        return None, True
    found = next((name for name in names if name in registry), None)
    return found, found is not None


def pieces(own, ids, sizes):
    """The pieces of a stream: the tokens of each, and the text that they complete."""
    done, told, at = 0, "", 0
    while done < len(ids):
        end = min(len(ids), done + sizes[at % len(sizes)])
        at += 1
        text = own.decode(ids[:end])
        # A character that is not complete comes with its last byte.
        while text.endswith("\ufffd") and end < len(ids):
            end += 1
            text = own.decode(ids[:end])
        yield text[len(told):], ids[done:end], end == len(ids)
        done, told = end, text


def template_values(question, reasoning):
    """What a request says of thoughts, as the templates name it."""
    thinks = question["inside"] or any(opener in question["text"] for opener in question["openers"])
    values = {"thinking": thinks, "enable_thinking": thinks}
    if reasoning in ("hy_v3", "hy_v4"):
        values["reasoning_effort"] = "high" if thinks else "no_think"
    if reasoning == "k2_horizon":
        values["reasoning_effort"] = "medium"
    if reasoning == "minimax_m3" and question["inside"]:
        values["thinking_mode"] = "enabled"
    return values


def horizon_format(text):
    """K2 Horizon's format of calls, which a request names."""
    if "<ifm|tool_call>{" in text:
        return "json"
    return "xml_typed" if "<ifm|arg_type>" in text else "xml"


def answer(question):
    tools, tools_known = known(question["tools"], TOOLS)
    reasoning, reasoning_known = known(question["reasoning"], REASONING)
    if not (tools_known and reasoning_known and (tools or reasoning)):
        return {"unknown": True}
    own = tokenizer(question["markers"])
    function = lambda name: {"name": name, "parameters": question["schema"]}
    request = ChatCompletionRequest(
        model="m",
        messages=[{"role": "user", "content": "x"}],
        tools=[{"type": "function", "function": function(name)} for name in question["functions"]],
        tool_choice="auto",
        chat_template_kwargs={"tool_call_format": horizon_format(question["text"])},
    )
    ids = own.encode(question["text"], add_special_tokens=False)
    prompt = own.encode("x", add_special_tokens=False)
    if question["inside"] and question["openers"]:
        opener = "<ifm|think_fast>" if reasoning == "k2_horizon" else question["openers"][0]
        prompt += own.encode(opener, add_special_tokens=False)

    def parser():
        kind = ParserManager.get_parser(
            tool_parser_name=tools,
            reasoning_parser_name=reasoning,
            enable_auto_tools=True,
            model_name="m",
            is_harmony=tools == "openai" or reasoning == "openai_gptoss",
        )
        values = template_values(question, reasoning)
        made = kind(own, request.tools, chat_template_kwargs=values)
        made.set_prompt_token_ids(prompt)
        return made

    def whole():
        thoughts, content, calls = parser().parse(
            question["text"], request, enable_auto_tools=True, model_output_token_ids=ids
        )
        calls = [{"name": call.name, "arguments": call.arguments} for call in calls or []]
        return {"reasoning": thoughts, "content": content, "calls": calls}

    def streamed(sizes):
        made = parser()
        read = {"reasoning": "", "content": "", "calls": [], "pieces": []}
        for text, tokens, finished in pieces(own, ids, sizes):
            read["pieces"].append(text)
            delta = made.parse_delta(text, tokens, request, prompt, finished=finished)
            if delta is None:
                continue
            read["reasoning"] += delta.reasoning or ""
            read["content"] += delta.content or ""
            for call in delta.tool_calls or []:
                while len(read["calls"]) <= call.index:
                    read["calls"].append({"name": "", "arguments": ""})
                if call.function is not None:
                    read["calls"][call.index]["name"] += call.function.name or ""
                    read["calls"][call.index]["arguments"] += call.function.arguments or ""
        return read

    def safely(read, *of):
        try:
            return read(*of)
        except Exception as error:  # A parser that fails is a difference like others.
            return {"error": f"{type(error).__name__}: {error}"[:300]}

    readings = [safely(whole), *(safely(streamed, sizes) for sizes in question["cuts"])]
    return {"readings": readings}


print(json.dumps({"tools": sorted(TOOLS), "reasoning": sorted(REASONING)}))
for line in open(sys.argv[1], encoding="utf-8"):
    print(json.dumps(answer(json.loads(line))), flush=True)
