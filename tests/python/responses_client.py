"""The official OpenAI client's Responses API against a running stator: BASE_URL MODEL.

Ends with status 0 when every check holds; an assertion says which one did not.
"""

import json
import re
import sys
import time

import openai

base_url, model = sys.argv[1:]
client = openai.OpenAI(base_url=base_url + "/v1", api_key="unused", max_retries=0)
question = "Tell me about the garden and the house. " * 12


def raised(kind, call):
    """The exception of this kind that `call` raises."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def ask(**further):
    return client.responses.create(**({"model": model, "input": question, "max_output_tokens": 12, "temperature": 0} | further))


def whole_response():
    answer = ask(instructions="You tell stories.", metadata={"k": "v"})
    assert answer.object == "response" and answer.id.startswith("resp_") and answer.model == model
    assert answer.output_text and answer.output[0].type == "message"
    assert answer.status in ("completed", "incomplete")
    if answer.status == "incomplete":
        assert answer.incomplete_details.reason == "max_output_tokens"
    usage = answer.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens and 1 <= usage.output_tokens <= 12
    assert usage.input_tokens_details.cached_tokens >= 0 and usage.output_tokens_details.reasoning_tokens == 0
    assert answer.metadata == {"k": "v"} and answer.instructions == "You tell stories."
    assert answer.temperature == 0 and answer.tools == [] and answer.parallel_tool_calls is True


def a_stream_adds_up_to_the_whole_response():
    whole = ask()
    with client.responses.stream(model=model, input=question, max_output_tokens=400, temperature=0) as stream:
        kinds = [event.type for event in stream]
    assert kinds[:2] == ["response.created", "response.in_progress"], kinds
    assert kinds[-1] in ("response.completed", "response.incomplete"), kinds
    events = list(ask(stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text, (text, whole.output_text)
    final = events[-1].response
    assert final.output_text == text and final.usage.output_tokens == whole.usage.output_tokens
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.id for item in done] == [item.id for item in final.output]


def a_response_is_kept_and_forgotten():
    answer = ask()
    again = client.responses.retrieve(answer.id)
    assert again.to_dict() == answer.to_dict()
    items = client.responses.input_items.list(answer.id).data
    assert len(items) == 1 and items[0].content[0].text == question
    client.responses.delete(answer.id)
    raised(openai.NotFoundError, lambda: client.responses.retrieve(answer.id))
    gone = ask(store=False)
    assert gone.store is False
    raised(openai.NotFoundError, lambda: client.responses.retrieve(gone.id))


def a_response_continues_another():
    first = ask()
    second = ask(previous_response_id=first.id, input="And then?")
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
    assert second.usage.input_tokens_details.cached_tokens >= 64, second.usage
    listed = list(client.responses.input_items.list(second.id, order="asc", limit=2))
    assert [item.type for item in listed] == ["message"] * 3
    assert listed[0].role == "user" and listed[1].role == "assistant" and listed[2].role == "user"
    by_hand = ask(input=[{"role": "user", "content": question}, *[item.to_dict() for item in first.output],
                         {"role": "user", "content": "And then?"}])
    assert by_hand.output_text == second.output_text
    error = raised(openai.BadRequestError, lambda: ask(previous_response_id="resp_none"))
    assert error.code == "previous_response_not_found", error.code


def a_response_in_the_background_is_followed_and_cancelled():
    answer = ask(background=True)
    assert answer.status in ("queued", "in_progress", "completed", "incomplete")
    deadline = time.monotonic() + 60
    while answer.status in ("queued", "in_progress"):
        assert time.monotonic() < deadline, answer.status
        answer = client.responses.retrieve(answer.id)
    assert answer.output_text == ask().output_text
    events = list(client.responses.retrieve(answer.id, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type in ("response.completed", "response.incomplete")
    rest = list(client.responses.retrieve(answer.id, stream=True, starting_after=3))
    assert [event.sequence_number for event in rest] == list(range(4, len(events)))
    streamed = list(ask(background=True, stream=True))
    assert streamed[-1].response.output_text == answer.output_text
    long = ask(background=True, max_output_tokens=300, extra_body={"ignore_eos": True})
    assert client.responses.cancel(long.id).status in ("cancelled", "incomplete")
    raised(openai.BadRequestError, lambda: client.responses.cancel(ask().id))


def tokens_are_counted_exactly():
    counted = client.responses.input_tokens.count(model=model, input=question, instructions="S")
    assert counted.input_tokens == ask(instructions="S").usage.input_tokens, counted


def functions_and_their_outputs_are_understood():
    tools = [{"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": False}]
    items = [
        {"role": "user", "content": "Rain?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Look."}]},
        {"role": "assistant", "content": "Let me look."},
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "Rain."},
    ]
    answer = ask(input=items, tools=tools, tool_choice="auto")
    assert answer.tools[0].name == "weather" and answer.output


def custom_tools_and_namespaces_keep_their_form():
    schema = {"type": "object", "properties": {"n": {"enum": [12]}}, "required": ["n"], "additionalProperties": False}
    spawn = {"type": "function", "name": "spawn", "description": "d", "parameters": schema, "strict": True}
    grammar = {"type": "grammar", "syntax": "regex", "definition": "[ab]{3}"}
    tools = [{"type": "custom", "name": "patch", "description": "d", "format": grammar},
             {"type": "namespace", "name": "team", "description": "d", "tools": [spawn]}]
    forced = {"tools": tools, "parallel_tool_calls": False, "max_output_tokens": 100, "temperature": 1}
    custom = {"type": "custom", "name": "patch"}
    with client.responses.stream(model=model, input=question, tool_choice=custom, **forced) as stream:
        events = list(stream)
        answer = stream.get_final_response()
    call = answer.output[0]
    assert call.type == "custom_tool_call" and call.name == "patch" and len(call.input) == 3, answer.output
    assert set(call.input) <= set("ab"), call.input
    pieces = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    assert "".join(pieces) == call.input, events
    lark = {"type": "grammar", "syntax": "lark", "definition": 'start: ("*" LINE)~1..2\nLINE: /[a-z "]{1,8}/ "\\n"'}
    tools[0]["format"] = lark
    for seed in range(6):
        call = ask(tool_choice=custom, **forced, extra_body={"seed": seed}).output[0]
        assert re.fullmatch(r'(\*[a-z "]{1,8}\n){1,2}', call.input), call
    error = raised(openai.BadRequestError, lambda: ask(
        tools=[{"type": "custom", "name": "patch", "format": lark | {"definition": "start: a"}}]))
    assert error.param == "tools[0].format.definition" and "line 1, column 8: nothing defines a" in error.message, error
    namespaced = ask(tool_choice={"type": "function", "name": "spawn", "namespace": "team"}, **forced).output[0]
    assert (namespaced.type, namespaced.namespace, namespaced.name) == ("function_call", "team", "spawn"), namespaced
    assert json.loads(namespaced.arguments) == {"n": 12}, namespaced
    items = [{"role": "user", "content": question}]
    for made, kind in ((call, "custom_tool_call_output"), (namespaced, "function_call_output")):
        items += [made.to_dict(), {"type": kind, "call_id": made.call_id, "output": "Done."}]
    assert ask(input=items, tools=tools).output_text


def a_prompt_that_is_too_long_is_cut_or_refused():
    turns = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"{n} " + "word " * 200} for n in range(41)]
    error = raised(openai.BadRequestError, lambda: ask(input=turns))
    assert error.code == "context_length_exceeded", error.code
    assert ask(input=turns, truncation="auto").output_text


def logprobs_are_included():
    answer = ask(include=["message.output_text.logprobs"], top_logprobs=2, max_output_tokens=3)
    tokens = answer.output[0].content[0].logprobs
    assert 1 <= len(tokens) <= 3 and len(tokens[0].top_logprobs) == 2, tokens


def sealed_thoughts_survive_a_stateless_round_trip():
    sealed = ["reasoning.encrypted_content"]
    thinks = {"reasoning": {"effort": "high"}, "store": False}
    plain = ask(**thinks).output[0]
    assert plain.type == "reasoning" and plain.encrypted_content is None, plain
    answer = ask(include=sealed, **thinks)
    item = answer.output[0]
    assert item.encrypted_content and item.content[0].text == plain.content[0].text, item
    events = list(ask(include=sealed, stream=True, **thinks))
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done[0].encrypted_content == item.encrypted_content, done

    def count(content, encrypted):
        thoughts = {"type": "reasoning", "id": item.id, "summary": [], "content": content, "encrypted_content": encrypted}
        turns = [{"role": "user", "content": question}, thoughts, {"role": "assistant", "content": "Yes."}]
        return client.responses.input_tokens.count(model=model, input=turns).input_tokens

    text = [{"type": "reasoning_text", "text": item.content[0].text}]
    with_text, without = count(text, None), count([], None)
    assert count([], item.encrypted_content) == with_text > without, (with_text, without)
    # What cannot be opened is left out, and the answer says so.
    foreign = item.encrypted_content[:-8] + "AAAAAAA="
    assert count([], foreign) == without
    turns = [{"role": "user", "content": question}, {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": foreign}]
    raw = client.responses.with_raw_response.create(model=model, input=turns, max_output_tokens=2)
    assert raw.headers["x-stator-ignored"] == "input[1].encrypted_content", raw.headers
    # A stored response is read with them, too.
    kept = ask(reasoning={"effort": "high"})
    assert client.responses.retrieve(kept.id).output[0].encrypted_content is None
    again = client.responses.retrieve(kept.id, include=sealed).output[0]
    assert again.encrypted_content == item.encrypted_content, again


def queries_are_obeyed_or_refused_by_name():
    answer = ask(background=True)
    with client.responses.retrieve(answer.id, stream=True, include_obfuscation=False) as stream:
        assert [event.sequence_number for event in stream][0] == 0
    for query, param in (
        ({"straem": "true"}, "straem"), ({"starting_after": "3"}, "starting_after"), ({"stream": "yes"}, "stream"),
        ({"include": "file_search_call.results"}, "include"), ({"include": "message.output_text.logprobs"}, "include"),
    ):
        error = raised(openai.BadRequestError, lambda: client.responses.retrieve(answer.id, extra_query=query))
        assert error.param == param, (query, error)
    error = raised(openai.BadRequestError, lambda: client.responses.input_items.list(answer.id, extra_query={"before": "x"}))
    assert error.param == "before", error
    error = raised(openai.BadRequestError, lambda: client.models.list(extra_query={"limit": 2}))
    assert error.param == "limit", error
    raw = client.responses.with_raw_response.create(model=model, input="Hello", max_output_tokens=2, extra_query={"api-version": "1"})
    assert raw.headers["x-stator-ignored"] == "api-version", raw.headers
    error = raised(openai.BadRequestError, lambda: ask(extra_query={"temperature": "1"}))
    assert error.param == "temperature", error


def errors():
    error = raised(openai.BadRequestError, lambda: ask(extra_body={"temprature": 1}))
    assert error.param == "temprature" and "did you mean temperature?" in error.message
    error = raised(openai.BadRequestError, lambda: ask(tools=[{"type": "web_search"}]))
    assert error.param == "tools[0].type", error.param
    raised(openai.NotFoundError, lambda: client.responses.retrieve("resp_none"))
    raised(openai.NotFoundError, lambda: ask(model="no-such-model"))


for check in (
    whole_response, a_stream_adds_up_to_the_whole_response, a_response_is_kept_and_forgotten,
    a_response_continues_another, a_response_in_the_background_is_followed_and_cancelled,
    tokens_are_counted_exactly, functions_and_their_outputs_are_understood,
    custom_tools_and_namespaces_keep_their_form,
    a_prompt_that_is_too_long_is_cut_or_refused, logprobs_are_included, sealed_thoughts_survive_a_stateless_round_trip,
    queries_are_obeyed_or_refused_by_name, errors,
):
    check()
    print("ok", check.__name__)
