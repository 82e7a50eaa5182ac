"""Triton's own client against a running stator, over HTTP and over gRPC: BASE_URL MODEL GRPC_ADDRESS."""

import queue
import sys

import numpy
import tritonclient.grpc
import tritonclient.http
from checks import base_url, model, raised, run
from tritonclient.utils import InferenceServerException

http = tritonclient.http.InferenceServerClient(base_url.removeprefix("http://"))
grpc = tritonclient.grpc.InferenceServerClient(sys.argv[3])
prompt = "It was a"
short = {"max_tokens": 6, "temperature": 0}


def tensors(kind, binary=None, **further):
    """The inputs of a call in the words of one of the two clients."""
    how = {} if binary is None else {"binary_data": binary}
    inputs = []
    for name, value in ({"text_input": prompt} | further).items():
        array = numpy.array([value], dtype=bool if isinstance(value, bool) else object)
        tensor = kind.InferInput(name, [1], "BOOL" if isinstance(value, bool) else "BYTES")
        tensor.set_data_from_numpy(array, **how)
        inputs.append(tensor)
    return inputs


def text(result, name="text_output"):
    """An output, which is one text."""
    array = result.as_numpy(name)
    assert array.shape == (1,), array
    return array[0].decode() if isinstance(array[0], bytes) else array[0]


def server_and_model():
    for client in (http, grpc):
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(model)
    server, described = http.get_server_metadata(), http.get_model_metadata(model)
    assert server["name"] == "stator" and "binary_tensor_data" in server["extensions"], server
    assert [tensor["name"] for tensor in described["outputs"]] == ["text_output", "finish_reason"], described
    config = grpc.get_model_config(model).config
    assert config.name == model and config.model_transaction_policy.decoupled, config
    types = [(tensor.name, tensor.data_type, tensor.optional) for tensor in config.input]
    assert types[0] == ("text_input", 13, False) and ("stream", 1, True) in types, types
    named = grpc.get_model_metadata(model)
    assert [tensor.name for tensor in named.inputs] == [tensor["name"] for tensor in described["inputs"]], named


def the_same_text_in_every_form():
    expected = text(grpc.infer(model, tensors(tritonclient.grpc), parameters=short))
    assert expected
    for binary in (True, False):
        for outputs in (None, [tritonclient.http.InferRequestedOutput("text_output", binary_data=binary)]):
            inputs = tensors(tritonclient.http, binary)
            answer = http.infer(model, inputs, parameters=short, outputs=outputs, request_id="7")
            assert text(answer) == expected, (binary, text(answer), expected)
            assert answer.get_response()["id"] == "7"
            told = answer.as_numpy("finish_reason")
            assert (told is None) == (outputs is not None), told
    echoed = http.infer(model, tensors(tritonclient.http, exclude_input_in_output=False), parameters=short)
    assert text(echoed) == prompt + expected, text(echoed)


def a_stream_adds_up():
    whole = text(grpc.infer(model, tensors(tritonclient.grpc), parameters=short))
    answers = queue.Queue()
    grpc.start_stream(lambda result, error: answers.put((result, error)))
    inputs = tensors(tritonclient.grpc, streaming=True)
    grpc.async_stream_infer(model, inputs, parameters=short, enable_empty_final_response=True)
    pieces, is_last = [], False
    while not is_last:
        result, error = answers.get(timeout=60)
        assert error is None, error
        response = result.get_response()
        is_last = response.parameters["triton_final_response"].bool_param
        if result.as_numpy("text_output") is not None:
            pieces.append(text(result))
    grpc.stop_stream()
    assert "".join(pieces) == whole, (pieces, whole)


def faults_are_told():
    for client, kind in ((http, tritonclient.http), (grpc, tritonclient.grpc)):
        fault = raised(InferenceServerException, lambda: client.infer(model, tensors(kind, image="x")))
        assert "image" in fault.message(), fault
        fault = raised(InferenceServerException, lambda: client.infer("other", tensors(kind)))
        assert "other" in fault.message(), fault
        odd = {"temprature": 1}
        fault = raised(InferenceServerException, lambda: client.infer(model, tensors(kind), parameters=odd))
        assert "did you mean temperature" in fault.message(), fault


run(server_and_model, the_same_text_in_every_form, a_stream_adds_up, faults_are_told)
