"""litellm against a running stator, as a server of OpenAI's API and of Anthropic's: BASE_URL MODEL."""

import json
import os
from typing import Literal

# Otherwise it asks the Internet for prices first.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
import pydantic
from checks import base_url, model, question, raised, run

litellm.suppress_debug_info = True
messages = [{"role": "user", "content": question}]
# Provider prefix of litellm, and the address that it wants.
providers = {
    "openai": base_url + "/v1",
    "hosted_vllm": base_url + "/v1",
    "anthropic": base_url,
}
tools = [{"type": "function", "function": {
    "name": "weather", "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}},
                   "required": ["city"], "additionalProperties": False},
}}]


class Report(pydantic.BaseModel):
    sunny: bool
    wind: Literal["north", "south"]


def ask(provider, **further):
    wanted = {"max_tokens": 12, "temperature": 0, "messages": messages, "num_retries": 0} | further
    return litellm.completion(
        model=f"{provider}/{model}", api_base=providers[provider], api_key="unused", **wanted)


def answers_are_whole_and_streamed():
    for provider in providers:
        whole = ask(provider)
        assert whole.choices[0].message.content and 1 <= whole.usage.completion_tokens <= 12, (provider, whole)
        chunks = list(ask(provider, stream=True, stream_options={"include_usage": True}))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content, (provider, text, whole)


def forced_tools_are_called_and_answered():
    for provider in providers:
        for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
            answer = ask(provider, tools=tools, tool_choice=choice, parallel_tool_calls=False, max_tokens=400)
            message = answer.choices[0].message
            [call] = message.tool_calls
            assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome"), (provider, call)
            history = messages + [
                message.model_dump(exclude_none=True),
                {"role": "tool", "tool_call_id": call.id, "content": "Sunny."},
            ]
            told = ask(provider, messages=history, tools=tools, tool_choice="none")
            assert told.choices[0].message.content, (provider, told)


def a_streamed_call_is_whole():
    for provider in providers:
        chunks = list(ask(provider, tools=tools, tool_choice="required", parallel_tool_calls=False,
                          max_tokens=400, stream=True))
        built = litellm.stream_chunk_builder(chunks, messages=messages)
        [call] = built.choices[0].message.tool_calls
        assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome"), (provider, call)


def answers_have_the_form_of_a_class():
    for provider in ("openai", "hosted_vllm"):
        answer = ask(provider, response_format=Report, max_tokens=400)
        Report.model_validate_json(answer.choices[0].message.content)


def responses_are_continued():
    asked = dict(model=f"openai/{model}", api_base=providers["openai"], api_key="unused", max_output_tokens=8)
    first = litellm.responses(input=question, **asked)
    assert first.output[0].content[0].text, first
    second = litellm.responses(input="And then?", previous_response_id=first.id, **asked)
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
    events = [event.type for event in litellm.responses(input=question, stream=True, **asked)]
    assert events[0] == "response.created" and events[-1] in ("response.completed", "response.incomplete"), events


def errors_are_the_clients_own():
    raised(litellm.NotFoundError, lambda: litellm.completion(
        model="openai/no-such-model", api_base=providers["openai"], api_key="unused", messages=messages,
        num_retries=0))
    error = raised(litellm.BadRequestError, lambda: ask("openai", extra_body={"temprature": 1}))
    assert "did you mean temperature?" in str(error), error


run(
    answers_are_whole_and_streamed, forced_tools_are_called_and_answered, a_streamed_call_is_whole,
    answers_have_the_form_of_a_class, responses_are_continued, errors_are_the_clients_own,
)
