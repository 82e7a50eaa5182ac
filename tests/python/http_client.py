"""Habits of HTTP, with Python's own client against a running stator: BASE_URL MODEL.

Ends with status 0 when every check holds; an assertion says which one did not.
"""

import gzip
import json
import sys
import urllib.error
import urllib.request
import zlib

base_url, model = sys.argv[1:]
chat = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3, "temperature": 0}


def send(path, body=None, method=None, **headers):
    """Status, headers and body of an answer."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    if isinstance(body, (dict, list)):
        body = json.dumps(body).encode()
    if body is not None:
        headers = {"content-type": "application/json"} | headers
    request = urllib.request.Request(base_url + path, data=body, headers=headers, method=method)
    try:
        answer = urllib.request.urlopen(request)
    except urllib.error.HTTPError as error:
        answer = error
    return answer.status, answer.headers, answer.read()


def compressed_bodies_are_unpacked_within_bounds():
    body = json.dumps(chat).encode()
    plain = json.loads(send("/v1/chat/completions", body)[2])["choices"]
    for coding, packed in (("gzip", gzip.compress(body)), ("deflate", zlib.compress(body)), ("identity", body)):
        status, _, answer = send("/v1/chat/completions", packed, content_encoding=coding)
        assert status == 200 and json.loads(answer)["choices"] == plain, (coding, answer)
    bomb = gzip.compress(b" " * (80 << 20))
    status, _, answer = send("/v1/chat/completions", bomb, content_encoding="gzip")
    assert status == 413, (status, answer)
    status, _, answer = send("/v1/chat/completions", b"no gzip", content_encoding="gzip")
    assert status == 400 and b"content-encoding" in answer, (status, answer)
    status, _, answer = send("/v1/chat/completions", body, content_encoding="br")
    assert status == 415 and b'\\"br\\"' in answer, (status, answer)


def pages_of_named_origins_read_answers():
    page = "https://page.example"
    status, headers, _ = send("/v1/chat/completions", method="OPTIONS", origin=page,
                              access_control_request_method="POST", access_control_request_headers="authorization")
    assert status == 204 and headers["access-control-allow-origin"] == page, headers
    assert headers["access-control-allow-headers"] == "authorization"
    _, headers, _ = send("/v1/chat/completions", chat, origin=page)
    assert headers["access-control-allow-origin"] == page and headers["vary"] == "Origin"
    _, headers, _ = send("/v1/chat/completions", chat, origin="https://other.example")
    assert headers["access-control-allow-origin"] is None
    status, headers, _ = send("/v1/models/none", origin=page)
    assert status == 404 and headers["access-control-allow-origin"] == page


def texts_become_tokens_and_texts_again():
    text = "Hello, you there!"
    _, _, answer = send("/tokenize", {"prompt": text, "return_token_strs": True, "add_special_tokens": False})
    tokens = json.loads(answer)
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"]) > 0, tokens
    assert "".join(tokens["token_strs"]) == text and tokens["max_model_len"] > 0
    _, _, answer = send("/detokenize", {"model": model, "tokens": tokens["tokens"]})
    assert json.loads(answer) == {"prompt": text}, answer
    counted = json.loads(send("/tokenize", {"model": model, "messages": chat["messages"]})[2])["count"]
    assert counted == json.loads(send("/v1/chat/completions", chat)[2])["usage"]["prompt_tokens"]
    assert send("/detokenize", {"tokens": [1 << 31]})[0] == 400


def small_routes_answer():
    assert send("/ping")[0] == 200 and json.loads(send("/version")[2])["version"]
    assert json.loads(send(f"/v1/models/{model}/ready")[2]) == {"ready": True}
    assert send("/v1/models/none/ready")[0] == 404
    described = json.loads(send(f"/v1/models/{model}")[2])
    assert described["modalities"] == {"input": ["text"], "output": ["text"]}, described
    status, headers, answer = send("/v1/files")
    assert status == 501 and b"/v1/files is not implemented" in answer and headers["x-should-retry"] == "false"
    _, headers, _ = send("/v1/chat/completions", chat)
    assert int(headers["openai-processing-ms"]) >= 0 and headers["x-request-id"]


def lists_are_no_objects():
    status, _, answer = send("/v1/chat/completions", [chat])
    assert status == 400 and b"the body must be an object, not a list" in answer, answer
    status, _, answer = send("/v1/chat/completions", chat | {"temperature": "hot"})
    assert status == 400 and b"must be a number" in answer and b"f64" not in answer, answer


for check in (
    compressed_bodies_are_unpacked_within_bounds, pages_of_named_origins_read_answers,
    texts_become_tokens_and_texts_again, small_routes_answer, lists_are_no_objects,
):
    check()
    print("ok", check.__name__)
