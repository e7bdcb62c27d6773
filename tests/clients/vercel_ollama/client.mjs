// The Vercel AI SDK with two providers for Ollama's API: ai-sdk-ollama asks by the package ollama,
// ollama-ai-provider-v2 by itself, and it checks the fields of all answers.

import assert from "node:assert/strict";

import { Output, embedMany, generateText, isStepCount, streamText, tool } from "ai";
import { createOllama as createOverPackage } from "ai-sdk-ollama";
import { createOllama } from "ollama-ai-provider-v2";
import { z } from "zod";

import { main, scenario, server } from "./scenarios.mjs";

const providers = {
  "ai-sdk-ollama": createOverPackage({ baseURL: server.url }),
  "ollama-ai-provider-v2": createOllama({ baseURL: `${server.url}/api` }),
};
const prompt = "What is the weather in Paris?";
// Only one of the providers sends the SDK's own limits on.
const limited = (tokens) => ({
  maxOutputTokens: tokens,
  temperature: 0,
  maxRetries: 0,
  providerOptions: { ollama: { options: { num_predict: tokens, temperature: 0 } } },
});
const Weather = z.strictObject({ sky: z.enum(["clear", "cloudy"]), windy: z.boolean() });
const tools = () => {
  const seen = [];
  const get_weather = tool({
    description: "The weather in a city",
    inputSchema: z.strictObject({ city: z.string() }),
    execute: async ({ city }) => {
      seen.push(city);
      return `Rain in ${city}`;
    },
  });
  return { seen, tools: { get_weather } };
};

for (const [name, provider] of Object.entries(providers)) {
  const model = provider(server.model);

  scenario(`text over ${name}`, async () => {
    const { text, usage, finishReason } = await generateText({ model, prompt, ...limited(16) });
    assert.ok(text.length > 0);
    assert.ok(usage.inputTokens > 0 && usage.outputTokens > 0 && usage.outputTokens <= 16);
    assert.ok(["length", "stop"].includes(finishReason));
  });

  scenario(`stream over ${name}`, async () => {
    const failures = [];
    const onError = ({ error }) => failures.push(error);
    const result = streamText({ model, prompt, system: "Be brief.", onError, ...limited(16) });
    const pieces = [];
    for await (const piece of result.textStream) pieces.push(piece);
    assert.deepEqual(failures, []);
    assert.ok(pieces.length > 1);
    assert.ok((await result.usage).outputTokens <= 16);
    assert.ok(["length", "stop"].includes(await result.finishReason));
  });

  for (const [kind, run] of Object.entries({ loop: generateText, "streamed loop": streamText }))
    scenario(`tool ${kind} over ${name}`, async () => {
      const { seen, tools: given } = tools();
      const calling = provider(server.callingModel);
      const stopWhen = isStepCount(3);
      const result = await run({ model: calling, prompt, tools: given, stopWhen, maxRetries: 0 });
      assert.equal(await result.text, server.callingModelAnswer);
      assert.deepEqual(seen, ["Paris"]);
      assert.equal((await result.steps)[0].finishReason, "tool-calls");
    });

  scenario(`structured output over ${name}`, async () => {
    const output = Output.object({ schema: Weather });
    const result = await generateText({ model, prompt, output, ...limited(60) });
    Weather.parse(result.output);
  });

  scenario(`embeddings over ${name}`, async () => {
    const embedder = provider.embeddingModel(server.embeddingModel);
    const { embeddings, usage } = await embedMany({ model: embedder, values: ["a", "b"] });
    assert.deepEqual(embeddings.map((vector) => vector.length), [384, 384]);
    assert.ok(usage.tokens > 0);
  });

  scenario(`errors over ${name}`, async () => {
    const refused = async (status, fields) => {
      const asked = { model, prompt, ...limited(16), ...fields };
      const failure = await generateText(asked).catch((error) => error);
      // A provider tells the status as its package does, or as the SDK does.
      const { status_code, statusCode } = failure.cause ?? failure;
      assert.equal(status_code ?? statusCode ?? failure.statusCode, status, String(failure));
    };
    await refused(404, { model: provider("no/such") });
    const providerOptions = { ollama: { options: { temperature: 9 } } };
    await refused(400, { providerOptions, temperature: 9 });
  });
}

scenario("completion over ollama-ai-provider-v2", async () => {
  const model = providers["ollama-ai-provider-v2"].completion(server.model);
  const { text } = await generateText({ model, prompt, maxRetries: 0 });
  assert.ok(text.length > 0);
});

await main("ai");
