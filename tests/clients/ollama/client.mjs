// The ollama package of npm: every route that it asks for, but pulls.

import assert from "node:assert/strict";

import { Ollama } from "ollama";

import { main, scenario, server } from "./scenarios.mjs";

const ollama = new Ollama({ host: server.url });
const { model, callingModel, embeddingModel } = server;
const content = "What is the weather in Paris?";
const question = { role: "user", content };
const options = { temperature: 0, num_predict: 16 };
const city = { type: "string", description: "Where" };
const tool = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather in a city",
    parameters: { type: "object", required: ["city"], properties: { city } },
  },
};
const format = {
  type: "object",
  properties: { sky: { enum: ["clear", "cloudy"] }, windy: { type: "boolean" } },
  required: ["sky", "windy"],
  additionalProperties: false,
};

// The parts of a stream, of which the last one says that it is.
const collect = async (stream) => {
  const parts = [];
  for await (const part of stream) parts.push(part);
  assert.ok(parts.length > 1 && parts.findIndex(({ done }) => done) === parts.length - 1);
  return parts;
};

scenario("models", async () => {
  assert.match((await ollama.version()).version, /^\d+\.\d+\.\d+$/);
  const { models } = await ollama.list();
  const names = models.map(({ name }) => name);
  for (const name of [model, callingModel, embeddingModel]) assert.ok(names.includes(name), name);
  for (const { digest, modified_at, size } of models) {
    assert.match(digest, /^[0-9a-f]{64}$/);
    assert.ok(size > 0 && !Number.isNaN(Date.parse(modified_at)));
  }
  const { models: running } = await ollama.ps();
  assert.ok(running.some(({ name, expires_at }) => name === model && Date.parse(expires_at)));
});

scenario("show", async () => {
  const shown = await ollama.show({ model });
  const family = shown.model_info["general.architecture"];
  assert.equal(shown.details.family, family);
  assert.ok(shown.model_info[`${family}.context_length`] >= 2048);
  assert.ok(shown.template.length > 0 && shown.capabilities.includes("completion"));
  assert.ok((await ollama.show({ model: callingModel })).capabilities.includes("tools"));
  assert.deepEqual((await ollama.show({ model: embeddingModel })).capabilities, ["embedding"]);
});

scenario("chat", async () => {
  const whole = await ollama.chat({ model, messages: [question], options });
  assert.equal(whole.message.role, "assistant");
  assert.ok(whole.eval_count > 0 && whole.eval_count <= 16 && whole.total_duration > 0);
  const stream = await ollama.chat({ model, messages: [question], options, stream: true });
  const parts = await collect(stream);
  assert.equal(parts.map(({ message }) => message.content).join(""), whole.message.content);
  assert.equal(parts.at(-1).done_reason, whole.done_reason);
});

scenario("generate", async () => {
  const asked = { model, prompt: content, options };
  const whole = await ollama.generate(asked);
  assert.ok(whole.response.length > 0 && Array.isArray(whole.context));
  const parts = await collect(await ollama.generate({ ...asked, stream: true }));
  assert.equal(parts.map(({ response }) => response).join(""), whole.response);
  // To go on, users of the package send back what they got.
  const more = await ollama.generate({ ...asked, context: whole.context, system: "Be brief." });
  assert.ok(more.response.length > 0);
  const raw = await ollama.generate({ ...asked, prompt: "One two", raw: true });
  assert.ok(raw.response.length > 0 && raw.prompt_eval_count < whole.prompt_eval_count);
});

for (const stream of [false, true])
  scenario(stream ? "tool call, streamed" : "tool call", async () => {
    const messages = [question];
    const ask = async () => {
      const answer = await ollama.chat({ model: callingModel, messages, tools: [tool], stream });
      return stream ? collect(answer) : [answer];
    };
    const calls = (await ask()).flatMap(({ message }) => message.tool_calls ?? []);
    assert.equal(calls.length, 1);
    assert.equal(calls[0].function.name, "get_weather");
    assert.deepEqual(calls[0].function.arguments, { city: "Paris" });
    messages.push({ role: "assistant", content: "", tool_calls: calls });
    messages.push({ role: "tool", tool_name: "get_weather", content: "Rain in Paris" });
    const said = (await ask()).map(({ message }) => message.content).join("");
    assert.equal(said, server.callingModelAnswer);
  });

scenario("format", async () => {
  const asked = { model, messages: [question], options: { ...options, num_predict: 60 } };
  const said = JSON.parse((await ollama.chat({ ...asked, format })).message.content);
  assert.deepEqual(Object.keys(said).sort(), ["sky", "windy"]);
  const told = await ollama.generate({ model, prompt: content, format, options: asked.options });
  assert.equal(typeof JSON.parse(told.response).windy, "boolean");
});

scenario("embeddings", async () => {
  const asked = { model: embeddingModel };
  const { embeddings } = await ollama.embed({ ...asked, input: ["a", "b"] });
  assert.deepEqual(embeddings.map((vector) => vector.length), [384, 384]);
  const { embedding } = await ollama.embeddings({ ...asked, prompt: "a" });
  // Texts that are embedded together differ in the last digits.
  const likeness = embedding.reduce((sum, value, at) => sum + value * embeddings[0][at], 0);
  assert.ok(likeness > 0.999, String(likeness));
});

scenario("leaving a stream", async () => {
  const stream = await ollama.chat({
    model,
    messages: [question],
    options: { num_predict: 2000, ignore_eos: true },
    stream: true,
  });
  await assert.rejects(
    async () => {
      for await (const part of stream) stream.abort();
    },
    { name: "AbortError" },
  );
});

scenario("errors", async () => {
  const refused = async (status_code, fields) =>
    assert.rejects(ollama.chat({ model, messages: [question], ...fields }), { status_code });
  await refused(404, { model: "no/such" });
  await refused(400, { options: { temperature: 9 } });
  await refused(404, { model: "no/such", stream: true });
  await assert.rejects(ollama.delete({ model }), { status_code: 404 });
});

await main("ollama");
