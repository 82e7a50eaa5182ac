// The official Anthropic client for TypeScript against a running stator: BASE_URL MODEL.
import Anthropic, { BadRequestError, NotFoundError } from "@anthropic-ai/sdk";
import { assert, baseURL, collected, model, run, thrown } from "./checks.mjs";

const client = new Anthropic({ baseURL, apiKey: "unused", maxRetries: 0 });
const messages = [{ role: "user", content: "Tell me about the garden and the house." }];
const tools = [{
  name: "weather",
  description: "Tells the weather.",
  input_schema: {
    type: "object", additionalProperties: false, required: ["city"],
    properties: { city: { enum: ["Paris", "Rome"] } },
  },
}];
const cities = ["Paris", "Rome"];

async function whole_message() {
  const message = await client.messages.create({ model, messages, max_tokens: 12 });
  assert.deepEqual([message.type, message.role, message.model], ["message", "assistant", model]);
  assert.ok(message.content[0].text && message._request_id);
  assert.ok(message.usage.output_tokens >= 1 && message.usage.output_tokens <= 12);
}

async function a_stream_adds_up_to_a_message() {
  const stream = client.messages.stream({ model, messages, max_tokens: 12 });
  const texts = [];
  stream.on("text", (text) => texts.push(text));
  const message = await stream.finalMessage();
  assert.equal(texts.join(""), message.content[0].text);
  const events = await collected(await client.messages.create({ model, messages, max_tokens: 3, stream: true }));
  assert.equal(events[0].type, "message_start");
  assert.deepEqual(events.slice(-2).map((event) => event.type), ["message_delta", "message_stop"]);
}

async function forced_tools_are_used_and_answered() {
  for (const tool_choice of [{ type: "any", disable_parallel_tool_use: true }, { type: "tool", name: "weather" }]) {
    const message = await client.messages.create({ model, messages, tools, tool_choice, max_tokens: 400 });
    assert.equal(message.stop_reason, "tool_use");
    const use = message.content.find((block) => block.type === "tool_use");
    assert.ok(use.id && cities.includes(use.input.city), JSON.stringify(use));
    const answered = [
      ...messages, { role: "assistant", content: message.content },
      { role: "user", content: [{ type: "tool_result", tool_use_id: use.id, content: "Sunny." }] },
    ];
    const next = await client.messages.create({
      model, messages: answered, tools, tool_choice: { type: "none" }, max_tokens: 8,
    });
    assert.equal(next.content[0].type, "text");
  }
}

async function a_streamed_tool_use_is_whole() {
  const tool_choice = { type: "tool", name: "weather", disable_parallel_tool_use: true };
  const stream = client.messages.stream({ model, messages, tools, tool_choice, max_tokens: 400 });
  const pieces = [];
  stream.on("inputJson", (piece) => pieces.push(piece));
  const message = await stream.finalMessage();
  const use = message.content.find((block) => block.type === "tool_use");
  assert.deepEqual(JSON.parse(pieces.join("")), use.input);
  assert.ok(cities.includes(use.input.city));
}

async function thoughts_are_blocks_of_their_own() {
  const asked = { model, messages, max_tokens: 1100, thinking: { type: "enabled", budget_tokens: 1024 } };
  const message = await client.messages.create(asked);
  assert.equal(message.content[0].type, "thinking");
  assert.ok(message.content[0].thinking);
  const stream = client.messages.stream(asked);
  const thoughts = [];
  stream.on("thinking", (piece) => thoughts.push(piece));
  const final = await stream.finalMessage();
  assert.equal(thoughts.join(""), final.content[0].thinking);
  const next = [...messages, { role: "assistant", content: final.content }, { role: "user", content: "And then?" }];
  await client.messages.create({ ...asked, messages: next, thinking: { type: "disabled" }, max_tokens: 4 });
}

async function tokens_are_counted() {
  const counted = await client.messages.countTokens({ model, messages, tools });
  const { usage } = await client.messages.create({ model, messages, tools, max_tokens: 1 });
  assert.equal(counted.input_tokens, usage.input_tokens + usage.cache_read_input_tokens);
}

async function errors() {
  const unknown = await thrown(NotFoundError, () => client.messages.create({ model: "none", messages, max_tokens: 1 }));
  assert.equal(unknown.error.error.type, "not_found_error");
  const slip = await thrown(BadRequestError, () =>
    client.messages.create({ model, messages, max_tokens: 1, temprature: 1 }));
  assert.match(slip.message, /did you mean temperature\?/);
  const listed = await collected(client.models.list());
  assert.deepEqual(listed.map((known) => known.id), [model]);
}

await run(
  whole_message, a_stream_adds_up_to_a_message, forced_tools_are_used_and_answered, a_streamed_tool_use_is_whole,
  thoughts_are_blocks_of_their_own, tokens_are_counted, errors,
);
