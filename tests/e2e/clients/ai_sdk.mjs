// Vercel's AI SDK against a server: a streamed and a whole answer with a call, and its result sent back, by each provider.
// Prints one JSON object per provider. Usage: node ai_sdk.mjs http://127.0.0.1:PORT
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const baseURL = `${process.argv[2]}/v1`;
const openai = createOpenAI({ baseURL, apiKey: "none" });
const models = {
  responses: openai.responses("local"),
  chat: openai.chat("local"),
  compatible: createOpenAICompatible({ name: "local", baseURL, includeUsage: true })("local"),
  messages: createAnthropic({ baseURL, apiKey: "none" })("local"),
};
const tools = { weather: tool({ description: "Weather", inputSchema: z.object({ city: z.string() }) }) };

async function asked(model, messages) {
  const options = { model, messages, tools, maxOutputTokens: 200, temperature: 0, maxRetries: 0, stopWhen: stepCountIs(1) };
  const stream = streamText({ ...options, onError: ({ error }) => console.error(String(error?.responseBody ?? error)) });
  const streamed = {
    text: await stream.text,
    reasoning: await stream.reasoningText,
    calls: (await stream.toolCalls).map((call) => [call.toolName, call.input]),
    reason: await stream.finishReason,
    usage: await stream.usage,
    messages: (await stream.response).messages,
  };
  const whole = await generateText(options);
  const calls = whole.toolCalls.map((call) => [call.toolName, call.input]);
  return { streamed, whole: { text: whole.text, reasoning: whole.reasoningText, calls, reason: whole.finishReason } };
}

for (const [name, model] of Object.entries(models)) {
  const question = { role: "user", content: "How is it?" };
  const first = await asked(model, [question]);
  const call = first.streamed.messages.flatMap((message) => message.content).find((part) => part.type === "tool-call");
  const output = { type: "text", value: "sunny" };
  const result = { type: "tool-result", toolCallId: call.toolCallId, toolName: call.toolName, output };
  const second = await asked(model, [question, ...first.streamed.messages, { role: "tool", content: [result] }]);
  console.log(JSON.stringify({ name, first, second }));
}
