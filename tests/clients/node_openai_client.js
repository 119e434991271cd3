// The official OpenAI client for Node.js: the models, a chat and a text, as a whole and streamed, an
// embedding, a refusal, and a stream that the client leaves.
//
// Usage: node node_openai_client.js URL

"use strict";

const { OpenAI } = require("openai");

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const model = "vllm_model";
const messages = [{ role: "user", content: "a b c" }];

async function streamed() {
  const pieces = [];
  let usage = null;
  const stream = await client.chat.completions.create({
    model,
    messages,
    stream: true,
    stream_options: { include_usage: true },
  });
  for await (const chunk of stream) {
    pieces.push(...chunk.choices.map((choice) => choice.delta.content));
    usage = chunk.usage ?? usage;
  }
  return { text: pieces.join(""), pieces: pieces.length, tokens: usage.total_tokens };
}

async function left() {
  const waiting = [{ role: "user", content: "!wait" }];
  const stream = await client.chat.completions.create({ model, messages: waiting, stream: true });
  for await (const chunk of stream) {
    if (chunk.choices[0].delta.content) {
      return chunk.choices[0].delta.content;
    }
  }
  return null;
}

async function main() {
  const models = [];
  for await (const one of client.models.list()) {
    models.push(one.id);
  }
  const chat = await client.chat.completions.create({ model, messages });
  const text = await client.completions.create({ model, prompt: "d e" });
  const embedding = await client.embeddings.create({ model, input: "one" });
  const refused = await client.chat.completions.create({ model, messages, n: 2 }).catch((error) => error);
  return {
    models,
    chat: chat.choices[0].message.content,
    text: text.choices[0].text,
    embedding: embedding.data[0].embedding,
    refused: [refused.constructor.name, refused.status],
    streamed: await streamed(),
    left: await left(),
  };
}

main().then((found) => process.stdout.write(JSON.stringify(found)));
