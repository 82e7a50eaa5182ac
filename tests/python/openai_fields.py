"""What becomes of every field that the official OpenAI client has: BASE_URL MODEL.

A field is read, or named in the header `x-stator-ignored`, or refused by its name. A field that a newer
client has and that is in no table here fails the check.
"""

import openai
from checks import base_url, fields, model
from openai.types import chat as chats
from openai.types import completion_create_params, embedding_create_params, responses, shared_params
from openai.types.chat import chat_completion_custom_tool_param as custom_tool_params
from openai.types.chat import chat_completion_message_custom_tool_call_param as custom_call_params
from openai.types.chat import chat_completion_message_function_tool_call_param as call_params
from openai.types.chat import chat_completion_named_tool_choice_custom_param as custom_choice_params
from openai.types.chat import chat_completion_named_tool_choice_param as choice_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import input_token_count_params, response_create_params, response_input_item_param
from openai.types.shared_params import response_format_json_schema as schema_params

client = openai.OpenAI(base_url=base_url + "/v1", api_key="unused", max_retries=0)

READ, IGNORED, REFUSED = "read", "ignored", "refused"
schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 10, "maximum": 99}}}
function = {"name": "f", "description": "d", "parameters": schema, "strict": False}
tool = {"type": "function"} | function
chat_tool = {"type": "function", "function": function}
question = [{"role": "user", "content": "Hello"}]

# A value that asks for something, and what becomes of it. A third entry is the field that a refusal names.
common = {
    "frequency_penalty": (0.5, READ), "logit_bias": ({"5": 1}, READ), "max_tokens": (3, READ), "model": (model, READ),
    "presence_penalty": (0.5, READ), "seed": (7, READ), "stop": (["xyz"], READ), "stream": (True, READ),
    "stream_options": ({"include_usage": True}, READ), "temperature": (0.5, READ), "top_p": (0.5, READ),
    "user": ("u", IGNORED), "n": (2, READ),
}
chat = common | {
    "messages": (question, READ),
    "audio": ({"format": "wav", "voice": "alloy"}, REFUSED),
    "function_call": ("auto", REFUSED), "functions": ([function], REFUSED),
    "logprobs": (True, READ), "top_logprobs": (2, READ), "max_completion_tokens": (3, READ),
    "metadata": ({"k": "v"}, IGNORED), "modalities": (["text", "audio"], REFUSED), "moderation": ({"model": "m"}, REFUSED),
    "parallel_tool_calls": (False, READ), "prediction": ({"type": "content", "content": "x"}, IGNORED),
    "prompt_cache_key": ("k", READ), "prompt_cache_options": ({"mode": "implicit"}, IGNORED),
    "prompt_cache_retention": ("24h", IGNORED), "reasoning_effort": ("low", READ),
    "response_format": ({"type": "json_object"}, READ), "safety_identifier": ("s", IGNORED),
    "service_tier": ("flex", REFUSED), "store": (True, REFUSED), "tool_choice": ("auto", READ), "tools": ([chat_tool], READ),
    "verbosity": ("low", REFUSED), "web_search_options": ({"search_context_size": "low"}, REFUSED),
}
completion = common | {
    "prompt": ("It was", READ), "best_of": (2, REFUSED), "echo": (True, READ), "logprobs": (2, READ), "suffix": ("x", REFUSED),
}
response = {
    "model": (model, READ), "input": ("Hello", READ), "instructions": ("S", READ), "include": (["reasoning.encrypted_content"], READ),
    "access_programs": (["x"], REFUSED), "background": (True, READ), "context_management": ([{"type": "compaction"}], REFUSED),
    "conversation": ("conv_1", REFUSED), "image": ({"size": "auto"}, REFUSED), "max_output_tokens": (3, READ),
    "max_tool_calls": (1, IGNORED), "metadata": ({"k": "v"}, READ), "moderation": ({"model": "m"}, REFUSED),
    "parallel_tool_calls": (False, READ), "previous_response_id": ("resp_none", REFUSED), "prompt": ({"id": "p"}, REFUSED),
    "prompt_cache_key": ("k", READ), "prompt_cache_options": ({"mode": "implicit"}, IGNORED),
    "prompt_cache_retention": ("24h", IGNORED), "reasoning": ({"effort": "low"}, READ), "safety_identifier": ("s", IGNORED),
    "service_tier": ("flex", REFUSED), "store": (False, READ), "stream": (True, READ),
    "stream_options": ({"include_obfuscation": True}, READ), "temperature": (0.5, READ),
    "text": ({"format": {"type": "json_object"}}, READ), "tool_choice": ("auto", READ), "tools": ([tool], READ),
    "top_logprobs": (2, READ), "top_p": (0.5, READ), "truncation": ("auto", READ), "user": ("u", IGNORED),
}
count = {name: response[name] for name in (
    "model", "input", "instructions", "conversation", "parallel_tool_calls", "previous_response_id", "reasoning", "text",
    "tool_choice", "tools", "truncation",
)} | {"personality": ("friendly", REFUSED)}
embedding = {
    "input": (["Hello"], READ), "model": (model, READ), "dimensions": (8, READ), "encoding_format": ("base64", READ),
    "user": ("u", IGNORED),
}
# Fields without which another asks for nothing, or is refused.
beside = {
    "stream_options": {"stream": True}, "top_logprobs": {"logprobs": True}, "best_of": {"n": 1},
    "tool_choice": {"tools": [chat_tool]}, "parallel_tool_calls": {"tools": [chat_tool]},
}
response_beside = {"stream_options": {"stream": True}, "tool_choice": {"tools": [tool]}, "parallel_tool_calls": {"tools": [tool]}}


called = {"name": "f", "arguments": "{}"}
call = {"id": "call_1", "type": "function", "function": called}
input_text = {"name": "c", "input": "x"}
custom_call = {"id": "call_2", "type": "custom", "custom": input_text}
grammar = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[a-c]+"}}
custom = {"name": "c", "description": "d", "format": grammar}
named = {"type": "function", "function": {"name": "f"}}
named_custom = {"type": "custom", "custom": {"name": "c"}}
chat_tools = [chat_tool, {"type": "custom", "custom": custom}]
allowed = {"mode": "auto", "tools": [named, named_custom]}
form = {"name": "n", "description": "d", "schema": schema, "strict": True}
answered = {"role": "assistant", "content": "A", "name": "n", "tool_calls": [call]}


def said(message):
    return {"messages": [*question, message]}


def calls(made):
    return said({"role": "assistant", "tool_calls": [made]})


def tools(made):
    return {"tools": [made]}


def chosen(choice):
    return {"tools": chat_tools, "tool_choice": choice}


# A type, an object of it whose members are all read, the body around an object, and members that are not read.
chat_objects = [
    (chats.ChatCompletionSystemMessageParam, {"role": "system", "content": "S", "name": "n"}, said, {}),
    (chats.ChatCompletionDeveloperMessageParam, {"role": "developer", "content": "S", "name": "n"}, said, {}),
    (chats.ChatCompletionUserMessageParam, {"role": "user", "content": "U", "name": "n"}, said, {}),
    (chats.ChatCompletionAssistantMessageParam, answered, said,
     {"audio": ({"id": "a"}, REFUSED), "function_call": (called, REFUSED), "refusal": ("No.", IGNORED)}),
    (chats.ChatCompletionToolMessageParam, {"role": "tool", "content": "12", "tool_call_id": "call_1"},
     lambda made: {"messages": [*question, answered, made]}, {}),
    (chats.ChatCompletionFunctionMessageParam, {"role": "function", "content": "12", "name": "f"}, said, {}),
    (chats.ChatCompletionContentPartTextParam, {"type": "text", "text": "t"},
     lambda made: said({"role": "user", "content": [made]}), {"prompt_cache_breakpoint": ({"mode": "explicit"}, IGNORED)}),
    (chats.ChatCompletionContentPartRefusalParam, {"type": "refusal", "refusal": "No."},
     lambda made: said({"role": "assistant", "content": [made]}), {}),
    (chats.ChatCompletionMessageFunctionToolCallParam, call, calls, {}),
    (call_params.Function, called, lambda made: calls(call | {"function": made}), {}),
    (chats.ChatCompletionMessageCustomToolCallParam, custom_call, calls, {}),
    (custom_call_params.Custom, input_text, lambda made: calls(custom_call | {"custom": made}), {}),
    (chats.ChatCompletionFunctionToolParam, chat_tool, tools, {}),
    (shared_params.FunctionDefinition, function, lambda made: tools(chat_tool | {"function": made}), {}),
    (chats.ChatCompletionCustomToolParam, {"type": "custom", "custom": custom}, tools, {}),
    (custom_tool_params.Custom, custom, lambda made: tools({"type": "custom", "custom": made}), {}),
    (custom_tool_params.CustomFormatGrammar, grammar, lambda made: tools({"type": "custom", "custom": custom | {"format": made}}), {}),
    (custom_tool_params.CustomFormatGrammarGrammar, grammar["grammar"],
     lambda made: tools({"type": "custom", "custom": custom | {"format": grammar | {"grammar": made}}}), {}),
    (chats.ChatCompletionNamedToolChoiceParam, named, chosen, {}),
    (choice_params.Function, {"name": "f"}, lambda made: chosen(named | {"function": made}), {}),
    (chats.ChatCompletionNamedToolChoiceCustomParam, named_custom, chosen, {}),
    (custom_choice_params.Custom, {"name": "c"}, lambda made: chosen(named_custom | {"custom": made}), {}),
    (chats.ChatCompletionAllowedToolChoiceParam, {"type": "allowed_tools", "allowed_tools": allowed}, chosen, {}),
    (chats.ChatCompletionAllowedToolsParam, allowed, lambda made: chosen({"type": "allowed_tools", "allowed_tools": made}), {}),
    (shared_params.ResponseFormatJSONSchema, {"type": "json_schema", "json_schema": form}, lambda made: {"response_format": made}, {}),
    (schema_params.JSONSchema, form, lambda made: {"response_format": {"type": "json_schema", "json_schema": made}}, {}),
    (shared_params.ResponseFormatJSONObject, {"type": "json_object"}, lambda made: {"response_format": made}, {}),
    (shared_params.ResponseFormatText, {"type": "text"}, lambda made: {"response_format": made}, {}),
    (chats.ChatCompletionStreamOptionsParam, {"include_usage": True}, lambda made: {"stream": True, "stream_options": made},
     {"include_obfuscation": (True, IGNORED)}),
]

item_text = {"type": "input_text", "text": "t"}
output_text = {"type": "output_text", "text": "t", "annotations": [], "logprobs": []}
direct = {"type": "direct"}
function_call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}", "status": "completed",
                 "namespace": "n", "caller": direct}
function_output = {"type": "function_call_output", "id": "fo_1", "call_id": "call_1", "output": "12", "status": "completed", "caller": direct}
custom_item = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "c", "input": "x", "namespace": "n", "caller": direct}
custom_output = {"type": "custom_tool_call_output", "id": "co_1", "call_id": "call_1", "output": "12", "caller": direct}
custom_tool = {"type": "custom", "name": "c", "description": "d", "allowed_callers": ["direct"],
               "format": {"type": "grammar", "syntax": "regex", "definition": "[a-c]+"}}
flat_tool = tool | {"allowed_callers": ["direct"]}
flat_form = {"type": "json_schema"} | form
later = {"defer_loading": (True, IGNORED), "async": (True, IGNORED)}


def items(*made):
    return {"input": [*question, *made]}


def picked(choice):
    return {"tools": [flat_tool, custom_tool], "tool_choice": choice}


response_objects = [
    (responses.EasyInputMessageParam, {"type": "message", "role": "user", "content": "U"}, items, {"phase": ("commentary", IGNORED)}),
    (responses.ResponseOutputMessageParam, {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                                            "content": [output_text]}, items, {"phase": ("final_answer", IGNORED)}),
    (responses.ResponseInputTextParam, item_text, lambda made: items({"role": "user", "content": [made]}),
     {"prompt_cache_breakpoint": ({"mode": "explicit"}, IGNORED)}),
    (responses.ResponseOutputTextParam, output_text, lambda made: items({"role": "assistant", "content": [made]}), {}),
    (responses.ResponseReasoningItemParam,
     {"type": "reasoning", "id": "rs_1", "summary": [], "status": "completed", "encrypted_content": "x",
      "content": [{"type": "reasoning_text", "text": "t"}]}, items, {}),
    (responses.ResponseFunctionToolCallParam, function_call, items, {"async": (True, IGNORED)}),
    (response_input_item_param.FunctionCallOutput, function_output, lambda made: items(function_call, made),
     {"name": ("f", IGNORED), "namespace": ("n", IGNORED)}),
    (responses.ResponseCustomToolCallParam, custom_item, items, {"async": (True, IGNORED)}),
    (responses.ResponseCustomToolCallOutputParam, custom_output, lambda made: items(custom_item, made), {}),
    (responses.FunctionToolParam, flat_tool, tools, later | {"output_schema": (schema, IGNORED)}),
    (responses.CustomToolParam, custom_tool, tools, later),
    (responses.NamespaceToolParam, {"type": "namespace", "name": "n", "tools": [flat_tool]}, tools, {"description": ("d", IGNORED)}),
    (responses.ToolChoiceFunctionParam, {"type": "function", "name": "f"}, picked, {}),
    (responses.ToolChoiceCustomParam, {"type": "custom", "name": "c"}, picked, {}),
    (responses.ToolChoiceAllowedParam, {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}, picked, {}),
    (responses.ResponseTextConfigParam, {"format": flat_form}, lambda made: {"text": made}, {"verbosity": ("low", REFUSED)}),
    (responses.ResponseFormatTextJSONSchemaConfigParam, flat_form, lambda made: {"text": {"format": made}}, {}),
    (shared_params.Reasoning, {"effort": "low", "mode": "standard"}, lambda made: {"reasoning": made},
     {"summary": ("auto", IGNORED), "generate_summary": ("auto", IGNORED), "context": ("auto", IGNORED)}),
]


def check(path, kinds, table, least, beside):
    known = set().union(*map(fields, kinds))
    assert known == set(table), (path, "in the client alone", known - set(table), "here alone", set(table) - known)
    for name, (value, fate) in table.items():
        body = least | beside.get(name, {}) | {name: value}
        try:
            answer = post(path, body)
        except openai.APIStatusError as error:
            assert fate == REFUSED, (path, name, error.message)
            assert error.status_code in (400, 422) and error.param.split(".")[0].split("[")[0] == name, (path, name, error.message)
            assert error.code != "unknown_parameter", (path, name, error.message)
            continue
        assert fate != REFUSED, (path, name, "was accepted")
        ignored = answer.headers.get("x-stator-ignored", "").split(", ")
        assert (fate == IGNORED) == any(it.split(".")[0] == name for it in ignored), (path, name, ignored)


def check_objects(path, objects, least):
    for kind, made, body, others in objects:
        known = fields(kind)
        assert known == set(made) | set(others), (kind.__name__, known ^ (set(made) | set(others)))
        for name, (value, expected) in [(name, (made[name], READ)) for name in made] + list(others.items()):
            became = fate(path, least | body(made | {name: value}), name)
            assert became == expected, (kind.__name__, name, became)
        misspelt = least | body(made | {"wibble": 1})
        try:
            post(path, misspelt)
        except openai.BadRequestError as error:
            assert error.code == "unknown_parameter" and error.param.endswith(".wibble"), (kind.__name__, error.message)
            continue
        raise AssertionError((kind.__name__, "a member that no object has was accepted"))


def fate(path, body, name):
    """What becomes of a member of an object."""
    try:
        answer = post(path, body)
    except openai.APIStatusError as error:
        assert error.status_code in (400, 422) and name in error.param, (path, name, error.message)
        assert error.code != "unknown_parameter", (path, name, error.message)
        return REFUSED
    ignored = answer.headers.get("x-stator-ignored", "").split(", ")
    return IGNORED if any(it.split(".")[-1] == name for it in ignored) else READ


def post(path, body):
    """The answer to a body, whatever its type."""
    answer = client._client.post(base_url + "/v1" + path, json=body, headers={"authorization": "Bearer unused"})
    if answer.status_code >= 400:
        raise client._make_status_error_from_response(answer)
    return answer


short = {"model": model, "max_tokens": 2, "temperature": 0}
check("/chat/completions", [chat_params.CompletionCreateParamsNonStreaming, chat_params.CompletionCreateParamsStreaming],
      chat, short | {"messages": question}, beside)
check("/completions", [completion_create_params.CompletionCreateParamsNonStreaming,
                       completion_create_params.CompletionCreateParamsStreaming], completion, short | {"prompt": "It was"}, beside)
check("/responses", [response_create_params.ResponseCreateParamsNonStreaming, response_create_params.ResponseCreateParamsStreaming],
      response, {"model": model, "input": "Hello", "max_output_tokens": 2, "temperature": 0}, response_beside)
check("/responses/input_tokens", [input_token_count_params.InputTokenCountParams], count, {"model": model, "input": "Hello"},
      response_beside)
check("/embeddings", [embedding_create_params.EmbeddingCreateParams], embedding, {"model": model, "input": "Hello"}, {})
check_objects("/chat/completions", chat_objects, short | {"messages": question})
check_objects("/responses", response_objects, {"model": model, "input": "Hello", "max_output_tokens": 2, "temperature": 0})
print("ok every field")
