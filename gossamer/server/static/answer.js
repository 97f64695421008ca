// An answer as it comes: text, reasoning, tool calls, and how probable each token was.

import { element } from "./state.js";

const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(1)}%`;

// `box` holds the message, `body` its text.
export class Answer {
  constructor(box, body) {
    Object.assign(this, { box, body, text: "", reasoning: "", calls: [], tokens: 0, shown: [] });
  }

  get empty() {
    return !this.text && !this.calls.length && !this.reasoning;
  }

  // As the API wants it back.
  get message() {
    const message = { role: "assistant", content: this.text };
    if (this.calls.length) message.tool_calls = this.calls.map((call) => call.whole);
    return message;
  }

  add(delta, logprobs) {
    if (delta.reasoning_content) this.think(delta.reasoning_content);
    for (const call of delta.tool_calls ?? []) this.call(call);
    if (delta.content) this.say(delta.content, logprobs);
  }

  say(text, logprobs) {
    this.text += text;
    // Text may lag behind its tokens, and the last token has none: what agrees is shown as tokens.
    let rest = text;
    for (const each of logprobs) {
      if (!each.token || !rest.startsWith(each.token)) break;
      this.body.append(this.token(each));
      rest = rest.slice(each.token.length);
    }
    this.body.append(rest);
  }

  token({ token, logprob, top_logprobs: top }) {
    const made = element("span", "token", token);
    const others = top.map((each) => `${percent(each.logprob)} ${JSON.stringify(each.token)}`);
    made.title = [`${percent(logprob)} ${JSON.stringify(token)}`, "", ...others].join("\n");
    made.style.setProperty("--doubt", (1 - Math.exp(logprob)).toFixed(3));
    return made;
  }

  think(text) {
    if (!this.reasoning) {
      const details = element("details", "reasoning");
      this.thought = element("span");
      details.append(element("summary", "", "Reasoning"), this.thought);
      this.body.before(details);
    }
    this.reasoning += text;
    this.thought.textContent = this.reasoning;
  }

  call({ index, id, function: called }) {
    if (!this.calls[index]) {
      const box = element("pre", "call");
      const label = element("span", "name", called.name);
      const given = element("code");
      box.setAttribute("aria-label", `Call of ${called.name}`);
      box.append(label, given);
      this.box.append(box);
      const whole = { id, type: "function", function: { name: called.name, arguments: "" } };
      this.calls[index] = { given, whole };
    }
    const { given, whole } = this.calls[index];
    whole.function.arguments += called.arguments ?? "";
    given.textContent = whole.function.arguments;
  }
}
