// Clients that people use against a vLLM behind an agent and the proxy: BASE_URL MODEL. The checks ask for
// what no other engine of these tests computes: vLLM's grammars, its sampling and its cached prefixes.
import Anthropic from "@anthropic-ai/sdk";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamObject, streamText, tool } from "ai";
import OpenAI, { BadRequestError } from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { assert, baseURL, collected, model, pause, run, runTogether, thrown } from "./checks.mjs";

const client = new OpenAI({ baseURL: `${baseURL}/v1`, apiKey: "unused", maxRetries: 0 });
const claude = new Anthropic({ baseURL, apiKey: "unused", maxRetries: 0 });
const prompt = "Tell me about the garden and the house.";
const messages = [{ role: "user", content: prompt }];
const sides = ["left", "right"];
// Tokens within which every form here ends.
const room = 400;
// Tokens of a block, of which cached prefixes are made.
const block = 32;
const Weather = z.strictObject({ city: z.enum(["Paris", "Rome"]), days: z.union([z.literal(1), z.literal(2)]) });
const Report = z.strictObject({ sunny: z.boolean(), wind: z.enum(["north", "south"]) });

async function forms_are_held() {
  const chat = await client.chat.completions.parse({
    model, messages, response_format: zodResponseFormat(Report, "report"), n: 2, seed: 1, max_tokens: room,
  });
  assert.equal(chat.choices.length, 2);
  chat.choices.forEach((choice) => Report.parse(choice.message.parsed));
  const response = await client.responses.parse({
    model, input: prompt, text: { format: zodTextFormat(Report, "report") }, max_output_tokens: room,
  });
  Report.parse(response.output_parsed);
  for (const form of [
    { structured_outputs: { choice: sides } }, { structured_outputs: { regex: "left|right" } },
    { guided_choice: sides }, { guided_grammar: 'root ::= "left" | "right"' },
  ]) {
    const text = await client.chat.completions.stream({ model, messages, max_tokens: room, ...form }).finalContent();
    assert.ok(sides.includes(text), JSON.stringify([form, text]));
  }
}

async function calls_are_held() {
  const forms = { weather: Weather, report: Report };
  const tools = Object.entries(forms).map(([name, parameters]) => zodFunction({ name, parameters }));
  const asked = { model, messages, tools, parallel_tool_calls: false, max_tokens: room };
  const choice = (await client.chat.completions.parse({ ...asked, tool_choice: "required", seed: 1 })).choices[0];
  const [call] = choice.message.tool_calls;
  assert.equal(choice.finish_reason, "tool_calls");
  forms[call.function.name].parse(call.function.parsed_arguments);
  const forced = { type: "function", function: { name: "weather" } };
  const stream = client.chat.completions.stream({ ...asked, tool_choice: forced, seed: 2 });
  const streamed = (await stream.finalChatCompletion()).choices[0].message.tool_calls[0];
  Weather.parse(JSON.parse(streamed.function.arguments));
}

async function sampling_and_logprobs_are_the_engines() {
  const asked = { model, prompt: "def answer(self):", max_tokens: 16, ignore_eos: true, logprobs: 2 };
  const behind = async (further) => {
    const { logprobs } = (await client.completions.create({ ...asked, ...further })).choices[0];
    assert.equal(logprobs.token_logprobs.length, 16);
    const likeliest = logprobs.top_logprobs.map((top) => Math.max(...Object.values(top)));
    return Math.max(...logprobs.token_logprobs.map((own, at) => likeliest[at] - own));
  };
  assert.ok((await behind({ temperature: 2, seed: 7 })) > 0);
  assert.equal(await behind({ temperature: 2, seed: 7, min_p: 1 }), 0);
  assert.equal(await behind({ temperature: 0 }), 0);
  const biased = await client.completions.create({
    ...asked, temperature: 0, logit_bias: { 300: 100 }, return_token_ids: true,
  });
  assert.deepEqual(biased.choices[0].token_ids, Array(16).fill(300));
  const refused = await thrown(BadRequestError, () =>
    client.chat.completions.create({ model, messages, prompt_logprobs: 1 }));
  assert.equal(refused.param, "prompt_logprobs");
}

async function cached_tokens_are_counted() {
  const story = [{ role: "user", content: "The cache of Node remembers the house. ".repeat(20) }];
  const usage = async () => (await client.chat.completions.create({ model, messages: story, max_tokens: 1 })).usage;
  const [first, again] = [await usage(), await usage()];
  const whole = Math.floor((first.prompt_tokens - 1) / block) * block;
  assert.equal(first.prompt_tokens_details.cached_tokens, 0);
  assert.equal(again.prompt_tokens_details.cached_tokens, whole);
  const message = await claude.messages.create({ model, messages: story, max_tokens: 1 });
  assert.equal(message.usage.cache_read_input_tokens, whole);
}

async function anthropics_client() {
  const tools = [{ name: "weather", description: "Tells the weather.", input_schema: z.toJSONSchema(Weather) }];
  const asked = { model, messages, tools, max_tokens: room };
  const alone = { type: "any", disable_parallel_tool_use: true };
  const message = await claude.messages.create({ ...asked, tool_choice: alone });
  assert.equal(message.stop_reason, "tool_use");
  Weather.parse(message.content.find((part) => part.type === "tool_use").input);
  const stream = claude.messages.stream({ ...asked, tool_choice: { type: "tool", name: "weather" } });
  const pieces = [];
  stream.on("inputJson", (piece) => pieces.push(piece));
  const use = (await stream.finalMessage()).content.find((part) => part.type === "tool_use");
  assert.deepEqual(JSON.parse(pieces.join("")), use.input);
  Weather.parse(use.input);
}

async function vercels_providers() {
  const openai = createOpenAI({ baseURL: `${baseURL}/v1`, apiKey: "unused" });
  const compatible = createOpenAICompatible({
    name: "stator", baseURL: `${baseURL}/v1`, includeUsage: true, supportsStructuredOutputs: true,
  });
  const providers = {
    responses: openai(model), chat: openai.chat(model), compatible: compatible(model),
    messages: createAnthropic({ baseURL: `${baseURL}/v1`, apiKey: "unused" })(model),
  };
  const weather = tool({ description: "Tells the weather.", inputSchema: Weather });
  await Promise.all(Object.entries(providers).map(async ([name, provider]) => {
    const asked = { model: provider, prompt, maxOutputTokens: room, maxRetries: 0 };
    const { object } = await generateObject({ ...asked, schema: Report });
    assert.ok(Report.safeParse(object).success, name);
    const { toolCalls } = await generateText({ ...asked, tools: { weather }, toolChoice: "required" });
    assert.ok(toolCalls.length >= 1 && toolCalls.every((call) => Weather.safeParse(call.input).success), name);
  }));
  const asked = { model: providers.compatible, prompt, maxOutputTokens: room, maxRetries: 0 };
  const streamed = streamObject({ ...asked, schema: Report });
  assert.ok((await collected(streamed.partialObjectStream)).length > 0);
  assert.ok(Report.safeParse(await streamed.object).success);
  const forced = { tools: { weather }, toolChoice: { type: "tool", toolName: "weather" } };
  const [call] = await streamText({ ...asked, ...forced }).toolCalls;
  assert.ok(Weather.safeParse(call.input).success);
  const providerOptions = { stator: { guided_choice: sides } };
  const { text } = await generateText({ ...asked, providerOptions });
  assert.ok(sides.includes(text), text);
}

await pause();
// What other prompts beside it would change.
await run(sampling_and_logprobs_are_the_engines, cached_tokens_are_counted);
await pause();
await runTogether(forms_are_held, calls_are_held, anthropics_client, vercels_providers);
