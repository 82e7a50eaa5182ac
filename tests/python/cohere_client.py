"""Cohere's client, which ranks documents, against a running stator: BASE_URL MODEL.

What becomes of every parameter that it has for a ranking is checked, too: one that a newer client has and
that is in no table here fails the check.
"""

import inspect

import cohere
from checks import base_url, model, raised, run
from cohere.core.api_error import ApiError

client = cohere.ClientV2(api_key="unused", base_url=base_url)
first = cohere.Client(api_key="unused", base_url=base_url)
garden = "The garden was full of flowers."
documents = ["A house by the sea.", garden, "Two dogs ran."]


def documents_are_ranked():
    answer = client.rerank(model=model, query=garden, documents=documents)
    assert answer.id and [result.index for result in answer.results][0] == 1, answer
    scores = [result.relevance_score for result in answer.results]
    assert scores == sorted(scores, reverse=True) and abs(scores[0] - 1) < 1e-4, scores
    [best] = client.rerank(model=model, query=garden, documents=documents, top_n=1).results
    assert best.index == 1
    cut = client.rerank(model=model, query=garden, documents=documents, max_tokens_per_doc=1)
    assert [result.relevance_score for result in cut.results] != scores, cut
    # Its first API repeats documents, of which each may be an object.
    answer = first.rerank(model=model, query=garden, documents=[{"text": text} for text in documents], return_documents=True)
    assert answer.results[0].document.text == garden, answer


def every_parameter_is_read_or_refused():
    read = {"model", "query", "documents", "top_n", "max_tokens_per_doc", "priority", "return_documents"}
    refused = {"relevant_spans": {"top_k": 1}, "rank_fields": ["text"], "max_chunks_per_doc": 2}
    known = set()
    for method in (client.rerank, first.rerank):
        parameters = set(inspect.signature(method).parameters) - {"request_options"}
        known |= parameters
        for name in parameters & set(refused):
            asked = {"model": model, "query": garden, "documents": documents, name: refused[name]}
            error = raised(ApiError, lambda: method(**asked))
            assert error.status_code == 400 and error.body["error"]["param"] == name, error
            assert error.body["error"]["code"] != "unknown_parameter", error
    assert known == read | set(refused), known ^ (read | set(refused))
    assert client.rerank(model=model, query=garden, documents=documents, priority=1).results


def what_is_not_there_is_named():
    error = raised(ApiError, lambda: client.embed(model=model, input_type="search_query", texts=[garden], embedding_types=["float"]))
    assert error.status_code == 501 and "/v2/embed" in error.body["error"]["message"], error
    error = raised(ApiError, lambda: client.rerank(model="no-such-model", query=garden, documents=documents))
    assert error.status_code == 404, error


run(documents_are_ranked, every_parameter_is_read_or_refused, what_is_not_there_is_named)
