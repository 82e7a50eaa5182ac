// Vercel's AI SDK against a running stator: BASE_URL MODEL. Its OpenAI provider speaks Responses by
// default, and chats if asked; another speaks chats with any server, and one Anthropic's Messages.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, isStepCount, streamObject, streamText, tool } from "ai";
import { z } from "zod";
import { assert, baseURL, collected, model, run } from "./checks.mjs";

/** The body of the last request of the OpenAI provider. */
let sent;
const openai = createOpenAI({
  baseURL: `${baseURL}/v1`, apiKey: "unused", fetch: (url, request) => (sent = request.body, fetch(url, request)),
});
const anthropic = createAnthropic({ baseURL: `${baseURL}/v1`, apiKey: "unused" });
const compatible = createOpenAICompatible({
  name: "stator", baseURL: `${baseURL}/v1`, includeUsage: true, supportsStructuredOutputs: true,
});
const providers = {
  responses: openai(model),
  chat: openai.chat(model),
  compatible: compatible(model),
  messages: anthropic(model),
};
const prompt = "Tell me about the garden and the house.";
const Weather = z.object({ city: z.enum(["Paris", "Rome"]) });
const Report = z.object({ sunny: z.boolean(), wind: z.enum(["north", "south"]) });

async function texts() {
  for (const [name, provider] of Object.entries(providers)) {
    const whole = await generateText({ model: provider, prompt, maxOutputTokens: 12, temperature: 0, maxRetries: 0 });
    assert.ok(whole.text, name);
    assert.ok(whole.usage.inputTokens > 0 && whole.usage.outputTokens > 0, name);
    const streamed = streamText({ model: provider, prompt, maxOutputTokens: 12, temperature: 0, maxRetries: 0 });
    assert.equal((await collected(streamed.textStream)).join(""), whole.text, name);
    assert.ok((await streamed.usage).outputTokens > 0, name);
  }
}

async function objects() {
  for (const [name, provider] of Object.entries(providers)) {
    const asked = { model: provider, prompt, schema: Report, maxOutputTokens: 400, maxRetries: 0 };
    const { object } = await generateObject(asked);
    assert.ok(Report.safeParse(object).success, name);
    const streamed = streamObject(asked);
    assert.ok((await collected(streamed.partialObjectStream)).length > 0, name);
    assert.ok(Report.safeParse(await streamed.object).success, name);
  }
}

async function tools_in_two_steps() {
  for (const [name, provider] of Object.entries(providers)) {
    const asked = [];
    const weather = tool({
      description: "Tells the weather.", inputSchema: Weather, execute: (input) => (asked.push(input), "Sunny."),
    });
    const answer = await generateText({
      model: provider, prompt, tools: { weather }, maxOutputTokens: 400, maxRetries: 0, stopWhen: isStepCount(2),
      prepareStep: ({ stepNumber }) => ({
        toolChoice: stepNumber === 0 ? { type: "tool", toolName: "weather" } : "none",
      }),
    });
    assert.equal(answer.steps.length, 2, name);
    assert.ok(asked.length >= 1 && asked.every((input) => Weather.safeParse(input).success), name);
    assert.equal(answer.steps[0].finishReason === "error", false, name);
    const streamed = streamText({
      model: provider, prompt, tools: { weather }, toolChoice: "required", maxOutputTokens: 400, maxRetries: 0,
    });
    const calls = await streamed.toolCalls;
    assert.ok(calls.length >= 1 && calls.every((call) => Weather.safeParse(call.input).success), name);
  }
}

async function a_response_is_continued() {
  const first = await generateText({ model: providers.responses, prompt, maxOutputTokens: 8, maxRetries: 0 });
  const previousResponseId = first.providerMetadata.openai.responseId;
  const second = await generateText({
    model: providers.responses, prompt: "And then?", maxOutputTokens: 8, maxRetries: 0,
    providerOptions: { openai: { previousResponseId } },
  });
  assert.ok(second.usage.inputTokens > first.usage.inputTokens + first.usage.outputTokens);
}

async function a_second_turn_refers_to_the_first() {
  const asked = { model: providers.responses, maxOutputTokens: 60, temperature: 0, maxRetries: 0 };
  const thinking = { openai: { forceReasoning: true, reasoningEffort: "high" } };
  for (const providerOptions of [{}, thinking]) {
    const first = await generateText({ ...asked, prompt, providerOptions });
    const turn = { role: "user", content: "And then?" };
    const messages = [{ role: "user", content: prompt }, ...first.response.messages, turn];
    const second = await generateText({ ...asked, messages, providerOptions });
    assert.ok(sent.includes("item_reference") && (providerOptions === thinking) === sent.includes("rs_"), sent);
    // All of the first answer is in the prompt, its thoughts too.
    assert.ok(second.usage.inputTokens > first.usage.inputTokens + first.usage.outputTokens, JSON.stringify([first.usage, second.usage]));
  }
}

await run(texts, objects, tools_in_two_steps, a_response_is_continued, a_second_turn_refers_to_the_first);
