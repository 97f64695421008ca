// The server's API: plain requests, and answers that come in pieces.

const KEY = "gossamer-key";

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => sessionStorage.setItem(KEY, value),
};

function headers() {
  const known = { "Content-Type": "application/json" };
  if (key.get()) known.Authorization = `Bearer ${key.get()}`;
  return known;
}

async function checked(response) {
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  const error = new Error(body?.error?.message ?? `the server answered ${response.status}`);
  throw Object.assign(error, { status: response.status });
}

export async function stats() {
  return (await checked(await fetch("v1/gossamer/stats", { headers: headers() }))).json();
}

// Names: the model's own, then those of its adapters.
export async function models() {
  const found = await (await checked(await fetch("v1/models", { headers: headers() }))).json();
  return found.data.map((each) => each.id);
}

// Calls onText with each piece of text, and onDelta with all that is new of a chat's message and its
// log probabilities; resolves to what the server counted, and the time it took.
export async function generate(body, chat, signal, onText, onDelta = () => {}) {
  const started = performance.now();
  const response = await checked(await fetch(chat ? "v1/chat/completions" : "v1/completions", {
    method: "POST",
    headers: headers(),
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  }));
  const result = { usage: null, gossamer: null, first: null, seconds: 0 };
  for await (const chunk of events(response.body)) {
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.usage) Object.assign(result, { usage: chunk.usage, gossamer: chunk.gossamer });
    const choice = chunk.choices[0];
    const text = chat ? choice?.delta?.content : choice?.text;
    if (chat && choice) onDelta(choice.delta, choice.logprobs?.content ?? []);
    if (text) {
      result.first ??= (performance.now() - started) / 1000;
      onText(text);
    }
  }
  result.seconds = (performance.now() - started) / 1000;
  return result;
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}
