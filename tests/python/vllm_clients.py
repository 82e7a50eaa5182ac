"""Clients that people use against a vLLM behind an agent and the proxy: BASE_URL MODEL.

The checks ask for what no other engine of these tests computes: vLLM's grammars, its sampling, its
logprobs and its cached prefixes.
"""

import json
import os
import re
from typing import Literal

# Otherwise litellm asks the Internet for prices first.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import anthropic
import instructor
import jsonschema
import litellm
import openai
import pydantic
from checks import base_url, model, pause, question, raised, run, run_together
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

litellm.suppress_debug_info = True
client = openai.OpenAI(base_url=base_url + "/v1", api_key="unused", max_retries=0)
claude = anthropic.Anthropic(base_url=base_url, api_key="unused", max_retries=0)
messages = [{"role": "user", "content": question}]
# Tokens within which every form here ends.
room = 400
# Tokens of a block, of which cached prefixes are made.
block = 32


class Report(pydantic.BaseModel):
    """Tells about a day."""

    model_config = pydantic.ConfigDict(extra="forbid")
    sunny: bool
    wind: Literal["north", "south"]


class Weather(pydantic.BaseModel):
    """Tells the weather of a city."""

    model_config = pydantic.ConfigDict(extra="forbid")
    city: Literal["Paris", "Rome"]
    days: Literal[1, 2]


report, weather = Report.model_json_schema(), Weather.model_json_schema()
functions = [openai.pydantic_function_tool(of, name=name) for name, of in (("weather", Weather), ("report", Report))]


def ask(**further):
    return client.chat.completions.create(**{"model": model, "messages": messages, "max_tokens": room} | further)


def joined(chunks):
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def forms_are_held():
    named = {"type": "json_schema", "json_schema": {"name": "report", "schema": report, "strict": True}}
    words = 'root ::= "left" | "right"'
    for form in (
        {"response_format": named},
        {"extra_body": {"structured_outputs": {"json": report}}},
        {"extra_body": {"guided_json": report}},
    ):
        choice = ask(**form, seed=1).choices[0]
        assert choice.finish_reason == "stop", (form, choice)
        jsonschema.validate(json.loads(choice.message.content), report)
    for form in (
        {"structured_outputs": {"choice": ["left", "right"]}}, {"structured_outputs": {"regex": "left|right"}},
        {"structured_outputs": {"grammar": words}}, {"guided_choice": ["left", "right"]},
        {"guided_regex": "left|right"}, {"guided_grammar": words},
    ):
        text = joined(ask(extra_body=form, stream=True))
        assert text in ("left", "right"), (form, text)
    parsed = client.chat.completions.parse(
        model=model, messages=messages, response_format=Report, n=3, seed=2, max_tokens=room)
    assert [type(choice.message.parsed) for choice in parsed.choices] == [Report] * 3, parsed
    raised(openai.BadRequestError, lambda: ask(extra_body={"guided_regex": "("}))


def calls_are_held():
    for seed in range(2):
        choice = client.chat.completions.parse(
            model=model, messages=messages, tools=functions, tool_choice="required", parallel_tool_calls=False,
            seed=seed, max_tokens=room).choices[0]
        [call] = choice.message.tool_calls
        assert choice.finish_reason == "tool_calls", choice
        assert isinstance(call.function.parsed_arguments, Weather if call.function.name == "weather" else Report), call
    forced = {"type": "function", "function": {"name": "weather"}}
    with client.chat.completions.stream(
            model=model, messages=messages, tools=functions, tool_choice=forced, seed=1, max_tokens=room) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        message = stream.get_final_completion().choices[0].message
    [call] = message.tool_calls
    assert [event.name for event in done] == [call.function.name] == ["weather"], done
    Weather.model_validate_json(call.function.arguments)
    history = [*messages, message.model_dump(exclude_none=True, include={"role", "tool_calls"}),
               {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}]
    told = ask(messages=history, tools=functions, tool_choice="none", max_tokens=8).choices[0]
    assert told.message.content and told.message.tool_calls is None, told


def inputs_of_custom_tools_are_held():
    way = 'start: "go " SIDE ("," SIDE)~0..2\nSIDE: "left" | "right"'
    for syntax, definition in (("lark", way), ("regex", "^go (left|right)(,(left|right)){0,2}$")):
        grammar = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
        steps = {"type": "custom", "custom": {"name": "steps", "description": "Goes.", "format": grammar}}
        answer = ask(tools=[steps], tool_choice="required", parallel_tool_calls=False, seed=3)
        [call] = answer.choices[0].message.tool_calls
        assert re.fullmatch("go (left|right)(,(left|right)){0,2}", call.custom.input), call


def drawn(count=24, prompt="def answer(self):", **further):
    """Token ids of a completion, and how much likelier the likeliest token was at each place."""
    body = {"ignore_eos": True, "return_token_ids": True} | further.pop("extra_body", {})
    choice = client.completions.create(
        model=model, prompt=prompt, max_tokens=count, logprobs=2, extra_body=body, **further).choices[0]
    of = choice.logprobs
    assert len(choice.token_ids) == len(of.token_logprobs) == count, choice
    return choice.token_ids, [max(top.values()) - own for own, top in zip(of.token_logprobs, of.top_logprobs)]


def sampling_is_the_engines():
    greedy, behind = drawn(temperature=0)
    assert max(behind) == 0, behind
    free, behind = drawn(temperature=2, seed=7)
    assert free == drawn(temperature=2, seed=7)[0] and max(behind) > 0, behind
    # Several tokens may be the likeliest: logprobs have few digits.
    for few in ({"top_k": 1}, {"min_p": 1.0}):
        assert max(drawn(temperature=2, seed=7, extra_body=few)[1]) == 0, few
    assert drawn(temperature=0, logit_bias={"300": 100})[0] == [300] * 24
    assert drawn(temperature=0, logit_bias={str(greedy[0]): -100})[0][0] != greedy[0]
    repeats, varies = (len(set(drawn(temperature=0, extra_body={"repetition_penalty": of})[0])) for of in (0.5, 2.0))
    assert repeats < varies, (repeats, varies)
    for field, value in (
        ("prompt_logprobs", 1), ("bad_words", ["a"]), ("allowed_token_ids", [5]), ("vllm_xargs", {"a": 1}),
        ("kv_transfer_params", {"do_remote_decode": True}),
    ):
        error = raised(openai.BadRequestError, lambda: ask(extra_body={field: value}))
        assert error.param == field, (field, error)


def logprobs_are_those_of_the_tokens():
    content = ask(max_tokens=8, temperature=0, logprobs=True, top_logprobs=3,
                  extra_body={"ignore_eos": True}).choices[0].logprobs.content
    assert len(content) == 8
    for token in content:
        tops = [top.logprob for top in token.top_logprobs]
        assert len(tops) == 3 and tops == sorted(tops, reverse=True) and token.logprob == tops[0] <= 0, token
        assert bytes(token.bytes).decode(errors="replace") == token.token, token
    # An answer has the same logprobs where it is a part of the prompt.
    prompt = list(range(300, 312))
    answer = client.completions.create(
        model=model, prompt=prompt, max_tokens=8, temperature=0, logprobs=1,
        extra_body={"ignore_eos": True, "return_token_ids": True}).choices[0]
    echoed = client.completions.create(
        model=model, prompt=prompt + answer.token_ids, max_tokens=1, temperature=0, logprobs=1, echo=True)
    of = echoed.choices[0].logprobs.token_logprobs
    assert len(of) == 21 and of[0] is None, of
    pairs = list(zip(answer.logprobs.token_logprobs, of[12:20]))
    assert all(abs(one - other) < 0.5 for one, other in pairs), pairs


def choices_differ_and_stop():
    whole = ask(temperature=0, max_tokens=24, extra_body={"ignore_eos": True}).choices[0].message.content
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    cut = ask(temperature=0, max_tokens=24, stop=[stop], extra_body={"ignore_eos": True}).choices[0]
    assert cut.finish_reason == "stop" and cut.message.content == whole[: whole.index(stop)], (whole, stop, cut)
    answer = ask(n=3, seed=3, max_tokens=8, extra_body={"ignore_eos": True})
    assert [choice.index for choice in answer.choices] == [0, 1, 2] and answer.usage.completion_tokens == 24, answer
    assert len({choice.message.content for choice in answer.choices}) == 3, answer
    greedy, _ = drawn(temperature=0)
    end = next(token for at, token in enumerate(greedy) if at >= 4 and token not in greedy[:at])
    ended = client.completions.create(
        model=model, prompt="def answer(self):", max_tokens=24, temperature=0,
        extra_body={"ignore_eos": True, "stop_token_ids": [end]})
    assert ended.choices[0].finish_reason == "stop" and ended.usage.completion_tokens == greedy.index(end) + 1, ended


def cached_tokens_are_counted():
    story = [{"role": "user", "content": "The cache remembers the garden. " * 20}]
    chat = lambda **further: ask(messages=story, max_tokens=1, **further).usage
    cached = lambda usage: usage.prompt_tokens_details.cached_tokens
    first, again = chat(), chat()
    whole = (first.prompt_tokens - 1) // block * block
    assert cached(first) == 0 and cached(again) == whole >= 2 * block, (first, again)
    assert cached(chat(extra_body={"cache_salt": "another"})) == 0
    *_, last = ask(messages=story, max_tokens=1, stream=True, stream_options={"include_usage": True})
    assert cached(last.usage) == whole, last
    usage = claude.messages.create(model=model, max_tokens=1, messages=story).usage
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (first.prompt_tokens - whole, whole), usage
    response = client.responses.create(model=model, input=story[0]["content"], max_output_tokens=1, store=False)
    assert response.usage.input_tokens_details.cached_tokens == whole, response


def anthropics_client():
    tools = [{"name": "weather", "description": "Tells the weather.", "input_schema": weather}]
    asked = {"model": model, "messages": messages, "tools": tools, "max_tokens": room}
    alone = {"type": "any", "disable_parallel_tool_use": True}
    message = claude.messages.create(**asked, tool_choice=alone)
    [use] = [part for part in message.content if part.type == "tool_use"]
    assert message.stop_reason == "tool_use", message
    jsonschema.validate(use.input, weather)
    with claude.messages.stream(**asked, tool_choice={"type": "tool", "name": "weather"}) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        message = stream.get_final_message()
    [use] = [part for part in message.content if part.type == "tool_use"]
    assert json.loads("".join(pieces)) == use.input, (pieces, use)
    jsonschema.validate(use.input, weather)
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "Sunny."}
    history = [*messages, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    told = claude.messages.create(**asked | {"messages": history, "max_tokens": 8}, tool_choice={"type": "none"})
    assert [part.type for part in told.content] == ["text"], told
    formed = claude.messages.parse(model=model, messages=messages, max_tokens=room, output_format=Report)
    assert isinstance(formed.parsed_output, Report), formed
    greedy = {"model": model, "messages": messages, "max_tokens": 24, "extra_body": {"temperature": 0}}
    text = claude.messages.create(**greedy).content[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    cut = claude.messages.create(**greedy, stop_sequences=[stop])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop), (text, cut)


@tool("weather", args_schema=Weather)
def told_weather(city: str, days: int) -> str:
    """Tells the weather of a city."""
    return f"It is sunny in {city}."


def langchain():
    for responses in (False, True):
        chat = ChatOpenAI(model=model, base_url=base_url + "/v1", api_key="unused", max_retries=0, max_tokens=room,
                          use_responses_api=responses)
        called = chat.bind_tools([told_weather], tool_choice="weather", parallel_tool_calls=False).invoke(question)
        [call] = called.tool_calls
        Weather.model_validate(call["args"])
        result = told_weather.invoke(call)
        told = chat.bind_tools([told_weather], tool_choice="none").bind(max_tokens=16)
        assert told.invoke([HumanMessage(question), called, result]).text, responses
        for method in ("json_schema", "function_calling"):
            found = chat.with_structured_output(Report, method=method).invoke(question)
            assert isinstance(found, Report), (responses, method, found)
    guided = ChatOpenAI(model=model, base_url=base_url + "/v1", api_key="unused", max_retries=0,
                        extra_body={"guided_choice": ["left", "right"]})
    assert guided.invoke(question).text in ("left", "right")


def litellms_providers():
    providers = {"openai": base_url + "/v1", "hosted_vllm": base_url + "/v1", "anthropic": base_url}
    tools = [{"type": "function", "function": {"name": "weather", "description": "x", "parameters": weather}}]
    for provider, address in providers.items():
        asked = dict(model=f"{provider}/{model}", api_base=address, api_key="unused", messages=messages,
                     num_retries=0, max_tokens=room)
        answer = litellm.completion(**asked, tools=tools, tool_choice="required", parallel_tool_calls=False)
        [call] = answer.choices[0].message.tool_calls
        Weather.model_validate_json(call.function.arguments)
        if provider != "anthropic":
            answer = litellm.completion(**asked, response_format=Report)
            Report.model_validate_json(answer.choices[0].message.content)
    answer = litellm.completion(**asked | {"model": f"hosted_vllm/{model}", "api_base": providers["hosted_vllm"]},
                                extra_body={"guided_choice": ["left", "right"]}, logprobs=True, top_logprobs=2)
    choice = answer.choices[0]
    assert choice.message.content in ("left", "right") and choice.logprobs.content[0].top_logprobs, answer


def instructors_modes():
    for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
        found = instructor.from_openai(client, mode=mode).chat.completions.create(
            model=model, messages=messages, response_model=Report, max_tokens=room, max_retries=0)
        assert isinstance(found, Report), (mode, found)
    found = instructor.from_openai(client, mode=instructor.Mode.RESPONSES_TOOLS).responses.create(
        model=model, input=question, response_model=Report, max_output_tokens=room, max_retries=0)
    assert isinstance(found, Report), found
    found = instructor.from_anthropic(claude, mode=instructor.Mode.ANTHROPIC_TOOLS).messages.create(
        model=model, messages=messages, response_model=Report, max_tokens=room, max_retries=0)
    assert isinstance(found, Report), found
    *_, last = instructor.from_openai(client, mode=instructor.Mode.TOOLS).chat.completions.create_partial(
        model=model, messages=messages, response_model=Report, max_tokens=room, max_retries=0)
    assert isinstance(last.sunny, bool) and last.wind in ("north", "south"), last


pause()
# What other prompts beside it would change.
run(
    sampling_is_the_engines, logprobs_are_those_of_the_tokens, choices_differ_and_stop, cached_tokens_are_counted,
    anthropics_client,
)
pause()
run_together(
    forms_are_held, calls_are_held, inputs_of_custom_tools_are_held, langchain, litellms_providers, instructors_modes,
)
