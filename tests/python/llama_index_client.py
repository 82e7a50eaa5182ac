"""llama-index's client of servers that speak OpenAI's API, against a running stator: BASE_URL MODEL."""

from typing import Literal

import pydantic
from checks import base_url, model, question, run
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike


def llm(max_tokens, **settings):
    return OpenAILike(model=model, api_base=base_url + "/v1", api_key="unused", max_retries=0, temperature=0, context_window=4096,
                      max_tokens=max_tokens, **settings)


chats = {"is_chat_model": True, "is_function_calling_model": True, "should_use_structured_outputs": True}
short, long = llm(12, **chats), llm(400, **chats)


class Report(pydantic.BaseModel):
    """Tells about a day."""

    sunny: bool
    wind: Literal["north", "south"]


def weather(city: Literal["Paris", "Rome"]) -> str:
    """Tells the weather of a city."""
    return f"It is sunny in {city}."


def chats_and_streams():
    asked = [ChatMessage(role="user", content=question)]
    whole = short.chat(asked)
    assert whole.message.content and whole.raw.usage.completion_tokens <= 12, whole
    pieces = list(short.stream_chat(asked))
    assert pieces[-1].message.content == whole.message.content, pieces[-1]
    assert "".join(piece.delta or "" for piece in pieces) == whole.message.content


def completions():
    words = llm(6, is_chat_model=False)
    whole = words.complete("It was a")
    assert whole.text, whole
    assert "".join(piece.delta for piece in words.stream_complete("It was a")) == whole.text


def a_forced_call_is_made_and_run():
    tool = FunctionTool.from_defaults(weather)
    answer = long.chat_with_tools([tool], user_msg=question, tool_required=True, allow_parallel_tool_calls=False)
    [call] = long.get_tool_calls_from_response(answer)
    assert call.tool_name == "weather" and call.tool_kwargs["city"] in ("Paris", "Rome"), call
    done = long.predict_and_call([tool], user_msg=question, tool_required=True, allow_parallel_tool_calls=False)
    assert str(done).startswith("It is sunny in"), done


def a_class_is_an_answer():
    report = long.structured_predict(Report, PromptTemplate("Tell about {place}."), place="the garden")
    assert isinstance(report, Report), report


run(chats_and_streams, completions, a_forced_call_is_made_and_run, a_class_is_an_answer)
