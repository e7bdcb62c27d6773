// CompatCanary: its probes of chat completions, tools, structured output and responses, one by one.

import assert from "node:assert/strict";

import { scanEndpoint } from "compatcanary";

import { main, scenario, server } from "./scenarios.mjs";

const target = { baseUrl: server.v1, model: server.model, timeoutMs: 300_000 };
// The package does not export their names.
const probes = [
  "models.list",
  "chat.basic",
  "chat.streaming",
  "chat.tool_call",
  "chat.structured_output",
  "responses.basic",
  "responses.streaming",
];
let report;

for (const id of probes) {
  scenario(id, async () => {
    report ??= await scanEndpoint(target);
    assert.deepEqual(report.results.map((result) => result.id), probes);
    const result = report.results.find((one) => one.id === id);
    assert.equal(result.status, "pass", result.summary);
  });
}

await main("compatcanary");
