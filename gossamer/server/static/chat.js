// The chat: one conversation, one answer at a time.

import { generate } from "./api.js";
import * as exporting from "./export.js";
import { $, announce, element, facts, prompted, sampling, server } from "./state.js";

let messages = [];
let running = null;

function add(role, text) {
  document.querySelector("#log .empty")?.remove();
  const box = element("div", `message ${role}`);
  if (role === "error") box.setAttribute("role", "alert");
  const body = element("span", "", text);
  box.append(element("span", "hidden", role === "user" ? "You: " : "Answer: "), body);
  $("log").append(box);
  box.scrollIntoView({ block: "end" });
  return { box, body };
}

function busy(is) {
  const focused = document.activeElement === $("send");
  $("stop").disabled = !is;
  if (is && focused) $("stop").focus(); // or the keyboard would be nowhere
  $("send").disabled = is;
  $("log").setAttribute("aria-busy", String(is));
}

async function ask() {
  const text = $("prompt").value.trim();
  if (!text || running || !server.stats) return;
  $("prompt").value = "";
  add("user", text);
  messages.push({ role: "user", content: text });
  const { box, body } = add("assistant", "");
  running = new AbortController();
  busy(true);
  announce("Answering");
  let answer = "";
  try {
    const request = { ...sampling(), ...prompted(messages), kv: $("kv").value };
    const result = await generate(request, server.stats.chat, running.signal, (piece) => {
      answer += piece;
      body.textContent = answer;
      $("log").scrollTop = $("log").scrollHeight;
    });
    box.append(element("span", "facts", facts(result)));
    announce(`Answer: ${answer}`);
  } catch (error) {
    if (error.name === "AbortError") box.append(element("span", "facts", "stopped"));
    else add("error", error.message);
    announce(error.name === "AbortError" ? `Stopped: ${answer}` : "");
  } finally {
    if (answer) messages.push({ role: "assistant", content: answer });
    else { messages.pop(); box.remove(); }
    running = null;
    busy(false);
    $("prompt").focus();
  }
}

function stop() {
  running?.abort();
}

export function setUp() {
  $("chat").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  $("stop").addEventListener("click", stop);
  $("reset").addEventListener("click", () => {
    stop();
    messages = [];
    announce("A new conversation");
    $("log").replaceChildren(element("p", "empty", "A new conversation."));
    $("prompt").focus();
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") stop(); });
  exporting.setUp(() => prompted(messages).messages ?? messages);
}
