"""langchain-openai against a running stator, over chats and over Responses: BASE_URL MODEL."""

from typing import Literal

import openai
import pydantic
from checks import base_url, model, question, raised, run
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


class Report(pydantic.BaseModel):
    """Tells about a day."""

    sunny: bool
    wind: Literal["north", "south"]


@tool
def weather(city: Literal["Paris", "Rome"]) -> str:
    """Tells the weather of a city."""
    return f"It is sunny in {city}."


def llm(**settings):
    settings = {"max_tokens": 400, "max_retries": 0, "temperature": 0} | settings
    return ChatOpenAI(model=model, base_url=base_url + "/v1", api_key="unused", **settings)


apis = {"chat": llm(), "responses": llm(use_responses_api=True)}


def answers_are_whole_and_streamed():
    for api in apis:
        chat = llm(max_tokens=12, use_responses_api=api == "responses")
        whole = chat.invoke(question)
        assert isinstance(whole, AIMessage) and whole.text, (api, whole)
        assert 1 <= whole.usage_metadata["output_tokens"] <= 12, (api, whole)
        chunks = list(chat.stream(question))
        text = "".join(chunk.text for chunk in chunks)
        assert text == whole.text, (api, text, whole)
    [batched, again] = llm(max_tokens=6).batch([question, question])
    assert batched.text == again.text


def forced_tools_are_called_and_answered():
    for api, chat in apis.items():
        for choice in ("any", "weather"):
            called = chat.bind_tools([weather], tool_choice=choice, parallel_tool_calls=False).invoke(question)
            [call] = called.tool_calls
            assert call["name"] == "weather" and call["args"]["city"] in ("Paris", "Rome"), (api, call)
            result = weather.invoke(call)
            assert isinstance(result, ToolMessage)
            told = chat.bind_tools([weather], tool_choice="none").invoke([HumanMessage(question), called, result])
            assert told.text and not told.tool_calls, (api, told)


def a_streamed_call_is_whole():
    for api, chat in apis.items():
        whole = None
        for chunk in chat.bind_tools([weather], tool_choice="any", parallel_tool_calls=False).stream(question):
            whole = chunk if whole is None else whole + chunk
        [call] = whole.tool_calls
        assert call["args"]["city"] in ("Paris", "Rome"), (api, whole)


def answers_have_the_form_of_a_class():
    for api, chat in apis.items():
        for method in ("json_schema", "function_calling"):
            report = chat.with_structured_output(Report, method=method).invoke(question)
            assert isinstance(report, Report), (api, method, report)


def a_response_is_continued():
    chat = llm(use_responses_api=True, max_tokens=8, use_previous_response_id=True)
    first = chat.invoke([HumanMessage(question)])
    assert first.response_metadata["id"].startswith("resp_"), first
    second = chat.invoke([HumanMessage(question), first, HumanMessage("And then?")])
    before = first.usage_metadata
    assert second.usage_metadata["input_tokens"] > before["input_tokens"] + before["output_tokens"]


def errors_are_the_clients_own():
    raised(openai.NotFoundError, lambda: llm().bind(model="no-such-model").invoke(question))
    error = raised(openai.BadRequestError, lambda: llm(extra_body={"temprature": 1}).invoke(question))
    assert error.param == "temprature", error


run(
    answers_are_whole_and_streamed, forced_tools_are_called_and_answered, a_streamed_call_is_whole,
    answers_have_the_form_of_a_class, a_response_is_continued, errors_are_the_clients_own,
)
