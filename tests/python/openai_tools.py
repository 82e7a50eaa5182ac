"""Tools, reasoning and forms of answers, with the official OpenAI client: BASE_URL MODEL.

The server has guided decoding. Ends with status 0 when every check holds; an assertion says which
one did not.
"""

import ast
import json
import re
import sys
from typing import Literal

import openai
import pydantic

base_url, model = sys.argv[1:]
client = openai.OpenAI(base_url=base_url + "/v1", api_key="unused", max_retries=0)
question = [{"role": "user", "content": "What is the weather in Paris?"}]


class Weather(pydantic.BaseModel):
    """Tells the weather of some days."""

    city: Literal["Paris", "Rome"]
    days: Literal[1, 2, 3]


class Report(pydantic.BaseModel):
    sunny: bool
    wind: Literal["north", "south"]
    hours: list[Literal[6, 12, 18]] = pydantic.Field(max_length=2)


def function(name):
    schema = {
        "type": "object", "additionalProperties": False, "required": ["city", "days"],
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 3}},
    }
    return {"type": "function", "function": {"name": name, "description": "x", "parameters": schema}}


tools = [function("weather"), function("forecast")]


def forced_calls_fit_their_schema():
    for seed in range(6):
        answer = client.chat.completions.create(
            model=model, messages=question, tools=tools, tool_choice="required", parallel_tool_calls=False,
            seed=seed, n=2, temperature=1.0, max_tokens=400,
        )
        assert len(answer.choices) == 2
        for choice in answer.choices:
            assert choice.finish_reason == "tool_calls" and choice.message.content is None, choice
            [call] = choice.message.tool_calls
            assert call.id.startswith("call_") and call.type == "function"
            assert call.function.name in ("weather", "forecast")
            Weather.model_validate_json(call.function.arguments)


def a_named_call_ends_with_stop():
    choice = client.chat.completions.create(
        model=model, messages=question, tools=tools, max_tokens=400,
        tool_choice={"type": "function", "function": {"name": "forecast"}},
    ).choices[0]
    assert choice.finish_reason == "stop"
    assert [call.function.name for call in choice.message.tool_calls] == ["forecast"]


def a_streamed_call_is_the_whole_call():
    asked = dict(
        model=model, messages=question, tools=tools, tool_choice="required", parallel_tool_calls=False,
        temperature=0, max_tokens=400,
    )
    whole = client.chat.completions.create(**asked).choices[0]
    with client.chat.completions.stream(**asked) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        choice = stream.get_final_completion().choices[0]
    assert choice.finish_reason == "tool_calls"
    [call], [expected] = choice.message.tool_calls, whole.message.tool_calls
    assert (call.function.name, call.function.arguments) == (expected.function.name, expected.function.arguments)
    assert [event.name for event in done] == [call.function.name]
    return whole


def calls_and_results_come_back():
    message = a_streamed_call_is_the_whole_call().message
    history = question + [
        message.model_dump(exclude_none=True) | {"content": None},
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Sunny."},
    ]
    answer = client.chat.completions.create(model=model, messages=history, tools=tools, max_tokens=8)
    assert answer.choices[0].message.content and answer.choices[0].message.tool_calls is None


def without_a_choice_text_is_text():
    for choice in ("auto", "none"):
        answer = client.chat.completions.create(
            model=model, messages=question, tools=tools, tool_choice=choice, max_tokens=8, temperature=0
        )
        assert answer.choices[0].message.content and answer.choices[0].message.tool_calls is None


PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: add_hunk | delete_hunk
add_hunk: "*** Add File: " filename LF add_line~1..2
delete_hunk: "*** Delete File: " filename LF
filename: /[a-z"\\]{1,6}/
add_line: "+" /(.{0,8})/ LF -> line
%import common.LF
"""
PATCHES = re.compile(
    r'\*\*\* Begin Patch\n(\*\*\* (Add File: [a-z"\\]{1,6}\n(\+[^\n]{0,8}\n){1,2}|Delete File: [a-z"\\]{1,6}\n))+'
    r"\*\*\* End Patch\n?"
)
SUM = """
start: sum
?sum: term (("+" | "-") term)~0..2   // Python reads these, too.
term: NUMBER | "(" sum ")"
NUMBER: /[1-9][0-9]?/
%ignore " "
"""


def custom(name, syntax=None, definition=None):
    form = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}} if syntax else {"type": "text"}
    return {"type": "custom", "custom": {"name": name, "description": "x", "format": form}}


def is_sum(text):
    ast.parse(text.strip(), mode="eval")
    return set(text) <= set("0123456789+-() ")


def custom_tools_get_inputs_of_their_grammar():
    forms = [
        (custom("patch", "lark", PATCH), lambda text: PATCHES.fullmatch(text)),
        (custom("sum", "lark", SUM), is_sum),
        (custom("words", "regex", r'^("[^"\n]{0,6}"\n?){1,3}$'), lambda text: re.fullmatch(r'("[^"\n]{0,6}"\n?){1,3}', text)),
    ]
    for tool, fits in forms:
        name = tool["custom"]["name"]
        chosen = {"type": "custom", "custom": {"name": name}}
        for seed in range(8):
            asked = dict(model=model, messages=question, tools=[*tools, tool], tool_choice=chosen, seed=seed,
                         temperature=1.0, max_tokens=400)
            answer = client.chat.completions.create(**asked).choices[0]
            [call] = answer.message.tool_calls
            assert answer.finish_reason in ("stop", "length") and call.type == "custom", answer
            assert call.id.startswith("call_") and call.custom.name == name, call
            # An answer that was cut is none of the grammar; the bundled model writes on and on.
            assert answer.finish_reason == "length" or fits(call.custom.input), call
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [chosen]}}
    answer = client.chat.completions.create(**asked | {"tool_choice": allowed, "parallel_tool_calls": False}).choices[0]
    assert [call.custom.name for call in answer.message.tool_calls] == ["words"], answer


def a_streamed_input_is_the_whole_input():
    asked = dict(model=model, messages=question, tools=[custom("patch", "lark", PATCH)], temperature=0, max_tokens=400,
                 tool_choice="required", parallel_tool_calls=False)
    message = client.chat.completions.create(**asked).choices[0].message
    [whole] = message.tool_calls
    pieces = [chunk.choices[0].delta.tool_calls for chunk in client.chat.completions.create(**asked, stream=True)
              if chunk.choices and chunk.choices[0].delta.tool_calls]
    pieces = [piece.to_dict() for [piece] in pieces]
    assert pieces[0]["type"] == "custom" and pieces[0]["custom"]["name"] == "patch", pieces
    assert all("id" not in piece and "function" not in piece for piece in pieces[1:]), pieces
    assert "".join(piece["custom"]["input"] for piece in pieces) == whole.custom.input, pieces
    history = [*question, message.model_dump(exclude_none=True) | {"content": None},
               {"role": "tool", "tool_call_id": whole.id, "content": "Done."}]
    answer = client.chat.completions.create(model=model, messages=history, tools=asked["tools"], max_tokens=8)
    assert answer.usage.prompt_tokens_details.cached_tokens > 0, answer.usage


def a_custom_tool_without_a_grammar_takes_text():
    answer = client.chat.completions.create(
        model=model, messages=question, tools=[custom("note")], tool_choice="required", parallel_tool_calls=False,
        max_tokens=120, temperature=0,
    ).choices[0]
    [call] = answer.message.tool_calls
    assert call.type == "custom" and call.custom.name == "note" and call.custom.input, answer
    assert not call.custom.input.startswith("{"), call


def strict_tools_of_a_class():
    answer = client.chat.completions.parse(
        model=model, messages=question, max_tokens=400, tool_choice="required", parallel_tool_calls=False,
        tools=[openai.pydantic_function_tool(Weather, name="weather")],
    )
    [call] = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather)


def answers_have_the_form_of_a_class():
    for seed in range(6):
        answer = client.chat.completions.parse(
            model=model, messages=question, response_format=Report, seed=seed, n=2, temperature=1.2, max_tokens=400
        )
        for choice in answer.choices:
            assert isinstance(choice.message.parsed, Report), choice


def a_form_leaves_room_for_calls_and_thoughts():
    asked = dict(model=model, messages=question, response_format=Report, max_tokens=400,
                 tools=[openai.pydantic_function_tool(Weather, name="weather")])
    for seed in range(4):
        message = client.chat.completions.parse(**asked, parallel_tool_calls=False, seed=seed).choices[0].message
        assert isinstance(message.parsed, Report) != bool(message.tool_calls), message
    # The form of text says nothing of an answer that is calls.
    called = client.chat.completions.parse(**asked, tool_choice="required", parallel_tool_calls=False)
    [call] = called.choices[0].message.tool_calls
    Weather.model_validate_json(call.function.arguments)
    thinking = client.chat.completions.create(
        model=model, messages=question, reasoning_effort="low", max_tokens=12, temperature=0,
        response_format={"type": "json_object"}, extra_body={"ignore_eos": True},
    ).choices[0].message
    assert thinking.content == "" and not thinking.reasoning_content.lstrip().startswith("{"), thinking


def other_forms():
    def content(**form):
        answer = client.chat.completions.create(model=model, messages=question, max_tokens=400, **form)
        assert answer.choices[0].finish_reason == "stop", answer
        return answer.choices[0].message.content

    regex = content(extra_body={"structured_outputs": {"regex": "[ab]{2,4}-[0-9]"}})
    assert len(regex) in (4, 5, 6) and regex[-2] == "-", regex
    assert content(extra_body={"guided_choice": ["yes", "no"]}) in ("yes", "no")
    lark = content(extra_body={"guided_grammar": 'start: "a" b{1,3}\nb: "x" | "y"'})
    assert lark[0] == "a" and set(lark[1:]) <= {"x", "y"}, lark
    streamed = client.chat.completions.create(
        model=model, messages=question, max_tokens=400, stream=True,
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {
            "type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}}},
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    assert all(isinstance(item, bool) for item in json.loads(text)), text


def reasoning_is_apart():
    answer = client.chat.completions.create(
        model=model, messages=question, reasoning_effort="low", max_tokens=8, extra_body={"ignore_eos": True}
    )
    message = answer.choices[0].message
    assert message.reasoning_content and message.reasoning == message.reasoning_content
    assert message.content == "", message
    assert answer.usage.completion_tokens_details.reasoning_tokens == 8
    hidden = client.chat.completions.create(
        model=model, messages=question, reasoning_effort="low", max_tokens=8,
        extra_body={"ignore_eos": True, "include_reasoning": False},
    )
    assert not hasattr(hidden.choices[0].message, "reasoning_content")


def what_cannot_be_is_refused_by_name():
    def refused(**body):
        try:
            client.chat.completions.create(model=model, messages=question, **body)
        except openai.BadRequestError as error:
            return error
        raise AssertionError(f"{body} was not refused")

    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "not": {}}}}
    error = refused(response_format=schema)
    assert error.param == "response_format" and "not" in error.message, error
    assert refused(tool_choice="required").param == "tool_choice"
    bad = [function("weather")]
    bad[0]["function"]["parameters"]["uniqueItems"] = True
    bad[0]["function"]["parameters"]["type"] = "array"
    error = refused(tools=bad, tool_choice="required")
    assert error.param == "tool_choice" and "uniqueItems" in error.message, error
    error = refused(tools=[function("weather"), custom("f", "lark", 'start: a\na: "b" /c(?=d)/')])
    assert error.param == "tools[1].custom.format.grammar.definition", error
    assert "line 2, column 10: look-around" in error.message, error
    assert refused(tools=[custom("f", "ebnf", "root ::= x")]).param == "tools[0].custom.format.grammar.syntax"


for check in (
    forced_calls_fit_their_schema, a_named_call_ends_with_stop, a_streamed_call_is_the_whole_call,
    custom_tools_get_inputs_of_their_grammar, a_streamed_input_is_the_whole_input,
    a_custom_tool_without_a_grammar_takes_text, calls_and_results_come_back, without_a_choice_text_is_text, strict_tools_of_a_class,
    answers_have_the_form_of_a_class, a_form_leaves_room_for_calls_and_thoughts, other_forms,
    reasoning_is_apart, what_cannot_be_is_refused_by_name,
):
    check()
    print("ok", check.__name__)
