"""What becomes of every field that the official Anthropic client has, its betas among them: BASE_URL MODEL.

A field is read, or named in the header `x-stator-ignored`, or refused by its name. A field that a newer
client has and that is in no table here fails the check.
"""

import anthropic
from anthropic import types
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_params
from anthropic.types.beta import message_create_params as beta_params
from checks import base_url, fields, model

client = anthropic.Anthropic(base_url=base_url, api_key="unused", max_retries=0)

READ, IGNORED, REFUSED = "read", "ignored", "refused"
schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 10, "maximum": 99}}}
tool = {"name": "f", "description": "d", "input_schema": schema}
cached = {"type": "ephemeral"}
question = [{"role": "user", "content": "Hello"}]

# A value that asks for something, and what becomes of it.
count = {
    "messages": (question, READ), "model": (model, READ), "cache_control": (cached, READ), "system": ("S", READ),
    "output_config": ({"effort": "low"}, READ), "speed": ("fast", REFUSED), "thinking": ({"type": "adaptive"}, READ),
    "tool_choice": ({"type": "auto"}, READ), "tools": ([tool], READ), "user_profile_id": ("u", IGNORED), "workspace_id": ("w", REFUSED),
}
message = count | {
    "max_tokens": (3, READ), "container": ("c", REFUSED), "diagnostics": ({"previous_message_id": "msg_1"}, IGNORED),
    "inference_geo": ("us", REFUSED), "metadata": ({"user_id": "u"}, IGNORED), "service_tier": ("auto", IGNORED),
    "stop_sequences": (["xyz"], READ), "stream": (True, READ),
}
beta_count = count | {
    "betas": (["b"], IGNORED), "billing_policy": ({"type": "billing_policy", "bill_to": "user_profile"}, REFUSED),
    "compaction": ({"type": "summary"}, REFUSED), "context_management": ({"edits": [{"type": "clear_tool_uses_20250919"}]}, REFUSED),
    "mcp_servers": ([{"type": "url", "name": "n", "url": "u"}], REFUSED),
}
beta_message = message | beta_count | {
    "fallback_credit_token": ("t", REFUSED), "fallbacks": ([{"model": "m"}], REFUSED), "thread": ({"type": "create"}, REFUSED),
}
# Fields without which another asks for nothing, or is refused.
beside = {"tool_choice": {"tools": [tool]}}

call = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"n": 12}}
result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "12"}
text = {"type": "text", "text": "t"}
thoughts = {"type": "thinking", "thinking": "t", "signature": "s"}


def turns(*blocks):
    """A body whose assistant's turn has a block and a call, and the user's turn behind it the call's result."""
    made = {block["type"]: block for block in blocks}
    called, answered = made.pop("tool_use", call), made.pop("tool_result", result)
    return {"tools": [tool], "messages": [*question, {"role": "assistant", "content": [*made.values(), called]},
                                          {"role": "user", "content": [answered]}]}


def answered(block):
    """A body whose tool's result has a block."""
    return turns(result | {"content": [block]})


def chosen(choice):
    return {"tools": [tool], "tool_choice": choice}


def configured(config):
    return {"output_config": config}


def thinking(config):
    return {"thinking": config}


anywhere = {"cache_control": cached}
# A type, an object of it whose members are all read, the body around an object, and members that are not read.
objects = [
    (types.UserMessageParam, question[0], lambda turn: {"messages": [turn]}, {}),
    (types.AssistantMessageParam, {"role": "assistant", "content": "A"}, lambda turn: {"messages": [*question, turn]}, {}),
    (types.SystemMessageParam, {"role": "system", "content": "S"}, lambda turn: {"messages": [turn, *question]}, {}),
    (types.TextBlockParam, text | anywhere, turns, {"citations": ([{"type": "char_location"}], REFUSED)}),
    (types.ThinkingBlockParam, thoughts, turns, {}),
    (types.RedactedThinkingBlockParam, {"type": "redacted_thinking"}, turns, {"data": ("d", IGNORED)}),
    (types.ToolUseBlockParam, call | anywhere | {"caller": {"type": "direct"}}, turns, {"toolset_name": ("t", REFUSED)}),
    (types.ToolResultBlockParam, result | anywhere | {"is_error": True}, turns, {"toolset_name": ("t", REFUSED)}),
    (types.ToolReferenceBlockParam, {"type": "tool_reference", "tool_name": "f"} | anywhere, answered, {}),
    (types.ToolParam, tool | anywhere | {"type": "custom", "strict": True, "defer_loading": True}, lambda made: {"tools": [made]},
     {"allowed_callers": (["direct"], READ), "eager_input_streaming": (True, IGNORED), "input_examples": ([{"n": 12}], READ)}),
    (types.ToolChoiceAutoParam, {"type": "auto", "disable_parallel_tool_use": True}, chosen, {}),
    (types.ToolChoiceAnyParam, {"type": "any", "disable_parallel_tool_use": True}, chosen, {}),
    (types.ToolChoiceToolParam, {"type": "tool", "name": "f", "disable_parallel_tool_use": True}, chosen, {}),
    (types.ToolChoiceNoneParam, {"type": "none"}, chosen, {}),
    (types.OutputConfigParam, {"effort": "low", "format": {"type": "json_schema", "schema": schema}}, configured, {}),
    (types.JSONOutputFormatParam, {"type": "json_schema", "schema": schema}, lambda form: configured({"format": form}), {}),
    (types.ThinkingConfigEnabledParam, {"type": "enabled", "budget_tokens": 1024}, thinking, {"display": ("omitted", IGNORED)}),
    (types.ThinkingConfigAdaptiveParam, {"type": "adaptive"}, thinking, {"display": ("omitted", IGNORED)}),
    (types.ThinkingConfigBetweenToolsParam, {"type": "between_tools"}, thinking, {}),
    (types.ThinkingConfigDisabledParam, {"type": "disabled"}, thinking, {}),
]
short = {"model": model, "max_tokens": 2, "temperature": 0, "messages": question}


def fate(path, body, name):
    """What becomes of a field of a body."""
    headers = {"x-api-key": "unused", "anthropic-version": "2023-06-01"}
    answer = client._client.post(base_url + path, json=body, headers=headers)
    if answer.status_code < 400:
        ignored = answer.headers.get("x-stator-ignored", "").split(", ")
        return IGNORED if any(it.split(".")[-1] == name for it in ignored) else READ
    said = answer.json()["error"]["message"]
    assert answer.status_code in (400, 422) and name in said, (path, name, said)
    assert "is not a field of this API" not in said, (path, name, said)
    return REFUSED


def check(path, kinds, table, least):
    known = set().union(*map(fields, kinds))
    assert known == set(table), (path, "in the client alone", known - set(table), "here alone", set(table) - known)
    for name, (value, expected) in table.items():
        became = fate(path, least | beside.get(name, {}) | {name: value}, name)
        assert became == expected, (path, name, became)


def check_objects():
    for kind, made, body, others in objects:
        known = fields(kind)
        assert known == set(made) | set(others), (kind.__name__, known ^ (set(made) | set(others)))
        for name, (value, expected) in [(name, (made[name], READ)) for name in made] + list(others.items()):
            became = fate("/v1/messages", short | body(made | {name: value}), name)
            assert became == expected, (kind.__name__, name, became)


counted = {"model": model, "messages": question}
check("/v1/messages", [message_create_params.MessageCreateParamsNonStreaming, message_create_params.MessageCreateParamsStreaming],
      message, short)
check("/v1/messages/count_tokens", [message_count_tokens_params.MessageCountTokensParams], count, counted)
check("/v1/messages?beta=true", [beta_params.MessageCreateParamsNonStreaming, beta_params.MessageCreateParamsStreaming],
      beta_message, short)
check("/v1/messages/count_tokens?beta=true", [beta_count_params.MessageCountTokensParams], beta_count, counted)
check_objects()
print("ok every field")
