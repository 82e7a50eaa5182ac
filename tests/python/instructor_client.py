"""instructor against a running stator, over OpenAI's API and Anthropic's: BASE_URL MODEL."""

from typing import Literal

import anthropic
import instructor
import openai
import pydantic
from checks import base_url, model, question, run

messages = [{"role": "user", "content": question}]


class Report(pydantic.BaseModel):
    """Tells about a day."""

    sunny: bool
    wind: Literal["north", "south"]


def of_openai(mode):
    client = openai.OpenAI(base_url=base_url + "/v1", api_key="unused", max_retries=0)
    return instructor.from_openai(client, mode=mode)


def answers_have_the_form_of_a_class():
    for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
        report = of_openai(mode).chat.completions.create(
            model=model, messages=messages, response_model=Report, max_tokens=400, max_retries=0)
        assert isinstance(report, Report), (mode, report)


def responses_have_the_form_of_a_class():
    report = of_openai(instructor.Mode.RESPONSES_TOOLS).responses.create(
        model=model, input=question, response_model=Report, max_output_tokens=400, max_retries=0)
    assert isinstance(report, Report), report


def parts_come_before_the_whole():
    client = of_openai(instructor.Mode.TOOLS)
    parts = list(client.chat.completions.create_partial(
        model=model, messages=messages, response_model=Report, max_tokens=400, max_retries=0))
    assert parts and isinstance(parts[-1].sunny, bool) and parts[-1].wind in ("north", "south"), parts


def messages_have_the_form_of_a_class():
    client = anthropic.Anthropic(base_url=base_url, api_key="unused", max_retries=0)
    report = instructor.from_anthropic(client, mode=instructor.Mode.ANTHROPIC_TOOLS).messages.create(
        model=model, messages=messages, response_model=Report, max_tokens=400, max_retries=0)
    assert isinstance(report, Report), report


run(
    answers_have_the_form_of_a_class, responses_have_the_form_of_a_class, parts_come_before_the_whole,
    messages_have_the_form_of_a_class,
)
