"""Embeddings with the official OpenAI client, and rankings and scores over HTTP: BASE_URL MODEL.

Ends with status 0 when every check holds; an assertion says which one did not.
"""

import base64
import json
import math
import struct
import sys
import urllib.request

import openai

base_url, model = sys.argv[1:]
client = openai.OpenAI(base_url=base_url + "/v1", api_key="unused", max_retries=0)
garden = "The garden was full of flowers."


def close(one, other):
    return len(one) == len(other) and all(abs(a - b) < 1e-5 for a, b in zip(one, other))


def embed(texts, **options):
    answer = client.embeddings.create(model=model, input=texts, **options)
    assert answer.object == "list" and answer.model == model
    assert [item.index for item in answer.data] == list(range(len(answer.data)))
    assert all(item.object == "embedding" for item in answer.data)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0
    return [item.embedding for item in answer.data], answer.usage


def post(path, **body):
    body = json.dumps({"model": model, **body}).encode()
    request = urllib.request.Request(base_url + path, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def raised(call):
    try:
        call()
    except openai.BadRequestError as error:
        return error
    raise AssertionError("no BadRequestError")


def vectors_have_unit_length_in_both_encodings():
    # The client asks for base64 where nobody says how.
    (coded,), _ = embed(garden)
    (plain,), _ = embed(garden, encoding_format="float")
    assert close(coded, plain)
    assert abs(math.sqrt(sum(value * value for value in plain)) - 1) < 1e-5
    raw = post("/v1/embeddings", input=garden, encoding_format="base64")["data"][0]["embedding"]
    data = base64.b64decode(raw, validate=True)
    assert close(struct.unpack(f"<{len(data) // 4}f", data), plain)


def a_batch_is_as_its_inputs_alone():
    texts = [garden, "She had a small dog.", "It was a dark night.", garden]
    together, usage = embed(texts)
    alone = [embed(text) for text in texts]
    assert all(close(one, other) for one, ([other], _) in zip(together, alone))
    assert usage.prompt_tokens == sum(usage.prompt_tokens for _, usage in alone)
    assert together[0] == together[3] and not close(together[0], together[1])


def tokens_are_as_their_text():
    tokens = post("/tokenize", prompt=garden)["tokens"]
    (expected,), usage = embed(garden)
    (ids,), counted = embed(tokens)
    assert close(ids, expected) and counted.prompt_tokens == usage.prompt_tokens == len(tokens)
    lists, _ = embed([tokens, tokens[:3]])
    assert close(lists[0], expected) and not close(lists[1], expected)


def fewer_dimensions_have_unit_length_too():
    (whole,), _ = embed(garden)
    (short,), _ = embed(garden, dimensions=8)
    length = math.sqrt(sum(value * value for value in whole[:8]))
    assert close(short, [value / length for value in whole[:8]])
    error = raised(lambda: embed(garden, dimensions=1_000_000))
    assert error.param == "dimensions", error


def faults_are_named():
    context = client.models.retrieve(model).max_model_len
    for options, param in [
        ({"input": []}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": [1 << 30]}, "input"),
        ({"input": ""}, "input"),
        ({"input": [5] * (context + 1)}, "input"),
        ({"input": "a", "extra_body": {"dimension": 8}}, "dimension"),
        ({"input": "a", "extra_body": {"normalize": False}}, "normalize"),
        ({"input": "a", "extra_body": {"use_activation": False}}, "use_activation"),
        ({"input": "a", "extra_body": {"late_chunking": True}}, "late_chunking"),
    ]:
        error = raised(lambda: client.embeddings.create(model=model, **options))
        # A picker before the server names the field in words.
        assert error.param == param if error.param else param in error.message, (options, error)


def rankings_and_scores_are_cosines():
    documents = ["A house by the sea.", garden, "Two dogs ran."]
    vectors, _ = embed([garden, *documents])
    cosines = [sum(a * b for a, b in zip(vectors[0], vector)) for vector in vectors[1:]]
    ranked = sorted(range(3), key=lambda n: -cosines[n])
    assert ranked[0] == 1
    for path in ["/v1/rerank", "/rerank", "/v2/rerank"]:
        answer = post(path, query=garden, documents=documents)
        assert [result["index"] for result in answer["results"]] == ranked, answer
        scores = [result["relevance_score"] for result in answer["results"]]
        assert close(scores, [cosines[n] for n in ranked]), (scores, cosines)
        repeated = [result.get("document") for result in answer["results"]]
        assert repeated == [None if path == "/v2/rerank" else {"text": documents[n]} for n in ranked]
        assert answer["usage"]["total_tokens"] > 0
    answer = post("/v1/rerank", query=garden, documents=[{"text": text} for text in documents], top_n=1)
    assert [result["index"] for result in answer["results"]] == [1]
    for path in ["/v1/score", "/score"]:
        answer = post(path, text_1=garden, text_2=documents)
        assert close([item["score"] for item in answer["data"]], cosines), answer
    answer = post("/pooling", input=documents)
    assert all(close(item["data"], vector) for item, vector in zip(answer["data"], vectors[1:]))


for check in [
    vectors_have_unit_length_in_both_encodings,
    a_batch_is_as_its_inputs_alone,
    tokens_are_as_their_text,
    fewer_dimensions_have_unit_length_too,
    faults_are_named,
    rankings_and_scores_are_cosines,
]:
    check()
