// The Vercel AI SDK with its three providers: openai-compatible, openai (responses), anthropic.

import assert from "node:assert/strict";

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, embedMany, generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";

import { main, scenario, server } from "./scenarios.mjs";

const compatible = createOpenAICompatible({
  name: "omlx",
  baseURL: server.v1,
  apiKey: "x",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const models = {
  chat: compatible(server.model),
  responses: createOpenAI({ baseURL: server.v1, apiKey: "x" }).responses(server.model),
  messages: createAnthropic({ baseURL: server.v1, apiKey: "x" })(server.model),
};

const prompt = "What is the weather in Paris?";
const brief = { prompt, maxOutputTokens: 16, temperature: 0, maxRetries: 0 };
const cities = ["Paris", "Rome"];
const Weather = z.strictObject({ sky: z.enum(["clear", "cloudy"]), windy: z.boolean() });
const tools = () => {
  const seen = [];
  const getWeather = tool({
    description: "The weather in a city",
    inputSchema: z.strictObject({ city: z.enum(cities) }),
    execute: async ({ city }) => {
      seen.push(city);
      return `Rain in ${city}`;
    },
  });
  return { seen, tools: { getWeather } };
};

for (const [api, model] of Object.entries(models)) {
  scenario(`text over ${api}`, async () => {
    const { text, usage, finishReason } = await generateText({ ...brief, model });
    assert.ok(text.length > 0);
    assert.ok(usage.inputTokens > 0 && usage.outputTokens > 0 && usage.outputTokens <= 16);
    assert.ok(["length", "stop"].includes(finishReason));
  });

  scenario(`stream over ${api}`, async () => {
    const failures = [];
    const onError = ({ error }) => failures.push(error);
    const result = streamText({ ...brief, model, onError });
    const pieces = [];
    for await (const piece of result.textStream) pieces.push(piece);
    assert.deepEqual(failures, []);
    assert.ok(pieces.length > 1);
    assert.ok((await result.usage).outputTokens > 0);
    assert.ok(["length", "stop"].includes(await result.finishReason));
  });

  // The first step must call this tool, once; the second reads the result and may call nothing.
  scenario(`tool loop over ${api}`, async () => {
    const { seen, tools: given } = tools();
    const { steps } = await generateText({
      ...brief,
      model,
      tools: given,
      maxOutputTokens: 60,
      stopWhen: isStepCount(2),
      prepareStep: ({ stepNumber }) => ({
        toolChoice: stepNumber === 0 ? { type: "tool", toolName: "getWeather" } : "none",
      }),
    });
    assert.ok(seen.length > 0 && seen.every((city) => cities.includes(city)));
    assert.equal(steps.length, 2);
    assert.equal(steps[0].finishReason, "tool-calls");
    assert.ok(steps[1].text.length > 0);
  });

  scenario(`structured output over ${api}`, async () => {
    const output = Output.object({ schema: Weather });
    const result = await generateText({ ...brief, model, output, maxOutputTokens: 60 });
    Weather.parse(result.output);
  });
}

scenario("streamed tool call", async () => {
  const { seen, tools: given } = tools();
  const result = streamText({
    ...brief,
    model: models.chat,
    tools: given,
    toolChoice: { type: "tool", toolName: "getWeather" },
    maxOutputTokens: 60,
  });
  const kinds = new Set();
  for await (const part of result.fullStream) kinds.add(part.type);
  for (const kind of ["tool-input-start", "tool-input-delta", "tool-call", "tool-result"])
    assert.ok(kinds.has(kind), kind);
  assert.ok(seen.length > 0);
});

scenario("embeddings", async () => {
  const model = compatible.embeddingModel(server.embeddingModel);
  const { embeddings } = await embedMany({ model, values: ["a", "b"] });
  assert.deepEqual(embeddings.map((vector) => vector.length), [384, 384]);
});

scenario("text completion", async () => {
  const model = compatible.completionModel(server.model);
  const { text } = await generateText({ ...brief, model });
  assert.ok(text.length > 0);
});

scenario("errors", async () => {
  const refused = async (status, fields) => {
    const failure = await generateText({ ...brief, model: models.chat, ...fields }).then(
      () => assert.fail("it was not refused"),
      (error) => error,
    );
    assert.ok(APICallError.isInstance(failure), failure.message);
    assert.equal(failure.statusCode, status);
    return failure;
  };
  const unknown = await refused(404, { model: compatible("no/such") });
  assert.match(unknown.message, /no\/such/);
  await refused(400, { temperature: 9 });
  await refused(400, { prompt: "seven ".repeat(9000) });
  await refused(404, { model: createAnthropic({ baseURL: server.v1, apiKey: "x" })("no-such") });
});

await main("ai");
