// The chat: one conversation, one answer at a time.

import { generate } from "./api.js";
import { Answer } from "./answer.js";
import * as exporting from "./export.js";
import { $, announce, element, facts, prompted, sampling, server, structure } from "./state.js";

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
  let held;
  try {
    held = structure();
    $("structure-hint").textContent = "";
  } catch (error) {
    $("structure-hint").textContent = error.message;
    $("structure").open = true;
    return;
  }
  $("prompt").value = "";
  add("user", text);
  messages.push({ role: "user", content: text });
  const { box, body } = add("assistant", "");
  running = new AbortController();
  busy(true);
  announce("Answering");
  const answer = new Answer(box, body);
  const { chat } = server.stats;
  const take = (delta, logprobs) => {
    answer.add(delta, logprobs);
    $("log").scrollTop = $("log").scrollHeight;
  };
  try {
    const request = { ...sampling(), ...prompted(messages), kv: $("kv").value };
    if (chat) Object.assign(request, held);
    const text = (piece) => { if (!chat) take({ content: piece }, []); };
    const result = await generate(request, chat, running.signal, text, take);
    box.append(element("span", "facts", facts(result)));
    announce(`Answer: ${answer.text}`);
  } catch (error) {
    if (error.name === "AbortError") box.append(element("span", "facts", "stopped"));
    else add("error", error.message);
    announce(error.name === "AbortError" ? `Stopped: ${answer.text}` : "");
  } finally {
    if (answer.empty) { messages.pop(); box.remove(); } else messages.push(answer.message);
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
