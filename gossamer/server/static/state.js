// What all parts of the page know: the server's latest statistics, and the sampling controls.

export const server = { stats: null };

export const $ = (id) => document.getElementById(id);

// An element with a class and text: never HTML, since models write what they like.
export function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// For those who hear the page: once, when it is there, and not piece by piece.
export function announce(text) {
  $("announcer").textContent = text;
}

export function sampling() {
  const body = { model: $("lora").value || server.stats.model };
  for (const name of ["temperature", "top_p", "top_k", "max_tokens", "seed"]) {
    const field = $(name);
    if (field.value !== "" && field.checkValidity()) body[name] = Number(field.value);
  }
  return body;
}

function parsed(id, what) {
  const text = $(id).value.trim();
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what}: ${error.message}`);
  }
}

// What answers of a chat must look like, and the tools they may call. Throws for what is no JSON.
export function structure() {
  const schema = parsed("schema", "The schema is not JSON");
  const tools = parsed("tools", "The tools are not JSON");
  const body = {};
  if (schema) {
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  }
  if (tools?.length) body.tools = tools;
  if ($("logprobs").checked) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  return body;
}

// The prompt as the model wants it: messages where it has a template, else text.
export function prompted(messages) {
  if (!server.stats.chat) return { prompt: messages.at(-1).content };
  const system = $("system").value.trim();
  return { messages: system ? [{ role: "system", content: system }, ...messages] : messages };
}

export function bytes(size) {
  const units = ["B", "kB", "MB", "GB"];
  let unit = 0;
  for (; size >= 1000 && unit < units.length - 1; unit += 1) size /= 1000;
  return `${size.toLocaleString("en", { maximumFractionDigits: size < 10 ? 2 : 1 })} ${units[unit]}`;
}

export function facts(result) {
  const { usage, gossamer, first, seconds } = result;
  if (!usage) return "";
  const rate = usage.completion_tokens / Math.max(seconds, 1e-3);
  const words = [
    `${usage.completion_tokens} tokens`,
    `${rate.toFixed(1)} tokens/s`,
    `first after ${(first ?? seconds).toFixed(2)} s`,
  ];
  if (gossamer) words.push(`${bytes(gossamer.kv_bytes_per_token)} of KV per token`);
  return words.join(" · ");
}
