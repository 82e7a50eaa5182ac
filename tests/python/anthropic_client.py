"""The official Anthropic client against a running stator: BASE_URL MODEL.

Ends with status 0 when every check holds; an assertion says which one did not.
"""

import sys

import anthropic

base_url, model = sys.argv[1:]
client = anthropic.Anthropic(base_url=base_url, api_key="unused", max_retries=0)
question = [{"role": "user", "content": "Tell me about the garden and the house. " * 12}]
greedy = {"temperature": 0}


def raised(kind, call):
    """The exception of this kind that `call` raises."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def ask(**further):
    wanted = {"model": model, "max_tokens": 12, "messages": question, "extra_body": greedy} | further
    return client.messages.create(**wanted)


def whole_message():
    message = ask(system="You tell stories.")
    assert message.type == "message" and message.role == "assistant" and message.model == model
    assert [block.type for block in message.content] == ["text"] and message.content[0].text
    assert message.stop_reason in ("max_tokens", "end_turn") and message.stop_sequence is None
    assert message.id.startswith("msg_") and message._request_id
    usage = message.usage
    assert 1 <= usage.output_tokens <= 12 and usage.input_tokens >= 1


def cached_tokens_are_counted_apart():
    first = ask(system="You count tokens twice.")
    again = ask(system="You count tokens twice.")
    assert again.content[0].text == first.content[0].text
    assert again.usage.cache_read_input_tokens >= 64, again.usage
    of = lambda usage: usage.input_tokens + usage.cache_read_input_tokens
    assert of(first.usage) == of(again.usage)


def a_stream_adds_up_to_the_whole_message():
    whole = ask()
    with client.messages.stream(model=model, max_tokens=12, messages=question, extra_body=greedy) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_message()
    assert final.content[0].text == whole.content[0].text, (final, whole)
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert events[0] == "message_start" and events[-1] == "message_stop", events
    assert "content_block_start" in events and "content_block_stop" in events
    raw = client.messages.create(model=model, max_tokens=3, messages=question, stream=True)
    kinds = [event.type for event in raw]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], kinds


def tokens_are_counted_exactly():
    system = [{"type": "text", "text": "You tell stories.", "cache_control": {"type": "ephemeral"}}]
    counted = client.messages.count_tokens(model=model, messages=question, system=system)
    usage = ask(system=system).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens, (counted, usage)


def a_stop_sequence_is_named():
    text = ask(max_tokens=24).content[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    cut = ask(max_tokens=24, stop_sequences=["no such text", stop])
    assert cut.content[0].text == text[: text.index(stop)], (text, stop, cut)
    assert cut.stop_reason == "stop_sequence" and cut.stop_sequence == stop


def a_turn_of_tools_is_understood():
    tools = [{"name": "weather", "description": "Tells the weather.",
              "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}]
    messages = question + [
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "They want the weather.", "signature": "x"},
            {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bern"}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "Rain."}]},
            {"type": "text", "text": "And now?"},
        ]},
    ]
    message = ask(messages=messages, tools=tools, tool_choice={"type": "auto"})
    assert message.content and message.usage.output_tokens >= 1


def an_answer_is_continued():
    whole = ask(max_tokens=8).content[0].text
    begun = question + [{"role": "assistant", "content": whole[:4].rstrip() or "It"}]
    assert ask(messages=begun).content[0].text


def claude_code_reuses_its_prefix():
    story = "You are an agent. " * 40
    def prompt(number):
        return [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.{number}; cch={number}f;"},
                {"type": "text", "text": story, "cache_control": {"type": "ephemeral"}}]
    ask(system=prompt(1))
    again = ask(system=prompt(2))
    assert again.usage.cache_read_input_tokens >= 128, again.usage


def models_are_listed():
    listed = client.models.list().data
    assert [known.id for known in listed] == [model] and listed[0].type == "model", listed
    assert listed[0].created_at.year >= 2020 and listed[0].max_input_tokens > 0
    assert client.models.retrieve(model).display_name == model


def errors():
    error = raised(anthropic.NotFoundError, lambda: ask(model="no-such-model"))
    assert error.body["type"] == "error" and error.body["error"]["type"] == "not_found_error", error.body
    assert error.request_id and error.body["request_id"] == error.request_id
    error = raised(anthropic.BadRequestError, lambda: ask(extra_body={"temprature": 1}))
    assert "did you mean temperature?" in error.message, error.message
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}
    error = raised(anthropic.BadRequestError, lambda: ask(messages=[{"role": "user", "content": [image]}]))
    assert "messages[0].content[0]" in error.message and "image" in error.message
    raised(anthropic.BadRequestError, lambda: ask(max_tokens=0))
    error = raised(anthropic.APIStatusError, lambda: client.messages.batches.list())
    assert error.status_code == 501, error.status_code


for check in (
    whole_message, cached_tokens_are_counted_apart, a_stream_adds_up_to_the_whole_message,
    tokens_are_counted_exactly, a_stop_sequence_is_named, a_turn_of_tools_is_understood,
    an_answer_is_continued, claude_code_reuses_its_prefix, models_are_listed, errors,
):
    check()
    print("ok", check.__name__)
