"""The official OpenAI client against a running stator: BASE_URL MODEL.

Ends with status 0 when every check holds; an assertion says which one did not.
"""

import sys

import openai

base_url, model = sys.argv[1:]
client = openai.OpenAI(base_url=base_url + "/v1", api_key="unused", max_retries=0)
question = [{"role": "user", "content": "Tell me about the garden and the house."}]


def raised(kind, call):
    """The exception of this kind that `call` raises."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def chat():
    answer = client.chat.completions.create(model=model, messages=question, max_tokens=12, temperature=0)
    choice = answer.choices[0]
    assert answer.object == "chat.completion" and answer.model == model
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 1 <= usage.completion_tokens <= 12
    assert usage.prompt_tokens_details.cached_tokens >= 0
    return choice.message.content


def streamed_chat_equals_whole_chat():
    whole = chat()
    stream = client.chat.completions.create(
        model=model, messages=question, max_tokens=12, temperature=0,
        stream=True, stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole, (text, whole)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] in ("stop", "length")
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens >= 1
    assert len({c.id for c in chunks}) == 1


def several_choices_with_logprobs():
    answer = client.chat.completions.create(
        model=model, messages=question, max_tokens=4, n=3, seed=7, temperature=1.0,
        logprobs=True, top_logprobs=2, extra_body={"ignore_eos": True, "min_tokens": 4},
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        assert len(choice.logprobs.content) == 4
        for token in choice.logprobs.content:
            assert token.logprob <= 0 and len(token.top_logprobs) == 2
            assert bytes(token.bytes).decode(errors="replace") == token.token
    assert answer.usage.completion_tokens == 12


def completions():
    answer = client.completions.create(model=model, prompt="It was a", max_tokens=6, temperature=0, echo=True)
    assert answer.object == "text_completion"
    assert answer.choices[0].text.startswith("It was a") and len(answer.choices[0].text) > len("It was a")
    batch = client.completions.create(model=model, prompt=["It was", "She had"], max_tokens=3, temperature=0, n=2)
    assert [choice.index for choice in batch.choices] == [0, 1, 2, 3]
    assert batch.choices[0].text == batch.choices[1].text
    ids = client.completions.create(model=model, prompt=[5, 6, 7, 8], max_tokens=3, temperature=0, logprobs=1)
    assert ids.usage.prompt_tokens == 4 and len(ids.choices[0].logprobs.tokens) == ids.usage.completion_tokens
    text = "".join(
        chunk.choices[0].text
        for chunk in client.completions.create(model=model, prompt="It was a", max_tokens=6, temperature=0, stream=True)
    )
    assert "It was a" + text == answer.choices[0].text


def stop_strings():
    whole = client.completions.create(model=model, prompt="It was a", max_tokens=24, temperature=0)
    text = whole.choices[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    cut = client.completions.create(model=model, prompt="It was a", max_tokens=24, temperature=0, stop=[stop])
    assert cut.choices[0].text == text[: text.index(stop)], (text, stop, cut.choices[0].text)
    assert cut.choices[0].finish_reason == "stop"


def models():
    assert [m.id for m in client.models.list()] == [model]
    assert client.models.retrieve(model).id == model


def errors():
    ask = client.chat.completions.create
    error = raised(openai.NotFoundError, lambda: ask(model="no-such-model", messages=question))
    assert error.code == "model_not_found", error.code
    raised(openai.NotFoundError, lambda: client.models.retrieve("no-such-model"))
    error = raised(openai.BadRequestError, lambda: ask(model=model, messages=question, temperature=9))
    assert error.param == "temperature" and "9" in error.message and "2" in error.message
    raised(openai.BadRequestError, lambda: ask(model=model, messages=[]))
    error = raised(
        openai.BadRequestError,
        lambda: client.completions.create(model=model, prompt="word " * 100_000, max_tokens=4),
    )
    assert error.code == "context_length_exceeded", error.code
    error = raised(
        openai.UnprocessableEntityError, lambda: ask(model=model, messages=question, max_tokens=1, extra_body={"min_tokens": 2})
    )
    assert error.param == "min_tokens"
    raised(openai.NotFoundError, lambda: client.get("/nowhere", cast_to=object))


for check in (chat, streamed_chat_equals_whole_chat, several_choices_with_logprobs, completions, stop_strings, models, errors):
    check()
    print("ok", check.__name__)
