// The official OpenAI client for Node against a running stator: BASE_URL MODEL.
import OpenAI, { BadRequestError, NotFoundError } from "openai";
import { zodFunction, zodResponseFormat, zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { assert, baseURL, collected, model, run, thrown } from "./checks.mjs";

const client = new OpenAI({ baseURL: `${baseURL}/v1`, apiKey: "unused", maxRetries: 0 });
const question = "Tell me about the garden and the house.";
const messages = [{ role: "user", content: question }];
const Weather = z.object({ city: z.enum(["Paris", "Rome"]), days: z.union([z.literal(1), z.literal(2)]) });
const Report = z.object({ sunny: z.boolean(), wind: z.enum(["north", "south"]) });

async function chat() {
  const { data, request_id } = await client.chat.completions
    .create({ model, messages, max_tokens: 12, temperature: 0 }).withResponse();
  assert.ok(data.choices[0].message.content && request_id);
  assert.equal(data.usage.total_tokens, data.usage.prompt_tokens + data.usage.completion_tokens);
  return data.choices[0].message.content;
}

async function streamed_chat_equals_whole_chat() {
  const asked = { model, messages, max_tokens: 12, temperature: 0 };
  const chunks = await collected(
    await client.chat.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } }),
  );
  const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
  assert.equal(text, await chat());
  assert.ok(chunks.at(-1).usage.completion_tokens >= 1);
  const helped = await client.chat.completions.stream(asked).finalContent();
  assert.equal(helped, text);
}

async function forced_calls_fit_their_schema() {
  const tools = [zodFunction({ name: "weather", parameters: Weather })];
  const forced = { type: "function", function: { name: "weather" } };
  for (const tool_choice of ["required", forced]) {
    const answer = await client.chat.completions.parse({
      model, messages, tools, tool_choice, parallel_tool_calls: false, max_tokens: 400,
    });
    Weather.parse(answer.choices[0].message.tool_calls[0].function.parsed_arguments);
  }
  const stream = client.chat.completions.stream({
    model, messages, tools, tool_choice: "required", parallel_tool_calls: false, max_tokens: 400,
  });
  const done = [];
  stream.on("tool_calls.function.arguments.done", (event) => done.push(event));
  const call = (await stream.finalChatCompletion()).choices[0].message.tool_calls[0];
  Weather.parse(JSON.parse(call.function.arguments));
  assert.deepEqual(done.map((event) => event.name), ["weather"]);
}

async function tools_are_run_until_the_answer() {
  const asked = [];
  const weather = (parameters) => (asked.push(parameters), "Sunny.");
  const tools = [zodFunction({ name: "weather", parameters: Weather, function: weather })];
  const runner = client.chat.completions.runTools(
    { model, messages, tools, tool_choice: { type: "function", function: { name: "weather" } }, max_tokens: 400 },
  );
  await runner.done();
  assert.equal(asked.length, 1);
  Weather.parse(asked[0]);
}

async function answers_have_the_form_of_a_schema() {
  const chat = await client.chat.completions.parse({
    model, messages, response_format: zodResponseFormat(Report, "report"), max_tokens: 400,
  });
  Report.parse(chat.choices[0].message.parsed);
  const response = await client.responses.parse({
    model, input: question, text: { format: zodTextFormat(Report, "report") }, max_output_tokens: 400,
  });
  Report.parse(response.output_parsed);
}

async function responses_are_continued() {
  const first = await client.responses.create({ model, input: question, max_output_tokens: 8, temperature: 0 });
  assert.ok(first.output_text);
  const next = { model, input: "And then?", previous_response_id: first.id, max_output_tokens: 8 };
  const second = await client.responses.create(next);
  assert.ok(second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens);
  assert.equal((await client.responses.retrieve(second.id)).output_text, second.output_text);
  await client.responses.delete(second.id);
  await thrown(NotFoundError, () => client.responses.retrieve(second.id));
}

async function a_streamed_response_is_the_whole_response() {
  const asked = { model, input: question, max_output_tokens: 8, temperature: 0 };
  const whole = await client.responses.create(asked);
  const stream = client.responses.stream(asked);
  const events = await collected(stream);
  const final = await stream.finalResponse();
  assert.equal(final.output_text, whole.output_text);
  assert.equal(events[0].type, "response.created");
  assert.ok(["response.completed", "response.incomplete"].includes(events.at(-1).type), events.at(-1).type);
}

async function a_response_calls_a_function_and_reads_its_output() {
  const tools = [zodResponsesFunction({ name: "weather", parameters: Weather })];
  const asked = { model, input: question, tools, parallel_tool_calls: false, max_output_tokens: 400 };
  const first = await client.responses.parse({ ...asked, tool_choice: "required" });
  const call = first.output.find((item) => item.type === "function_call");
  Weather.parse(call.parsed_arguments);
  const second = await client.responses.create({
    ...asked, tool_choice: "none", previous_response_id: first.id, max_output_tokens: 8,
    input: [{ type: "function_call_output", call_id: call.call_id, output: "Sunny." }],
  });
  assert.ok(second.output_text);
  const events = await collected(
    client.responses.stream({ ...asked, tool_choice: { type: "function", name: "weather" } }),
  );
  const done = events.find((event) => event.type === "response.function_call_arguments.done");
  Weather.parse(JSON.parse(done.arguments));
}

async function errors() {
  const error = await thrown(BadRequestError, () =>
    client.chat.completions.create({ model, messages, temprature: 1 }));
  assert.equal(error.param, "temprature");
  await thrown(NotFoundError, () => client.chat.completions.create({ model: "no-such-model", messages }));
  const listed = await collected(client.models.list());
  assert.deepEqual(listed.map((known) => known.id), [model]);
}

await run(
  chat, streamed_chat_equals_whole_chat, forced_calls_fit_their_schema, tools_are_run_until_the_answer,
  answers_have_the_form_of_a_schema, responses_are_continued, a_streamed_response_is_the_whole_response,
  a_response_calls_a_function_and_reads_its_output, errors,
);
