// One prompt for two caches, side by side.

import { generate } from "./api.js";
import { diff } from "./diff.js";
import { $, bytes, element, facts, prompted, sampling, server } from "./state.js";

let running = null;

function column(engine) {
  const box = element("article", "column");
  const text = element("div", "text");
  const below = element("p", "facts");
  box.append(element("h3", "", engine.kv), text, below);
  $("columns").append(box);
  return { engine, text, below, answer: "", result: null };
}

async function fill(each, prompt, signal) {
  // The same seed and no chance unless asked for: differences then come from the caches.
  const request = { ...sampling(), seed: Number($("seed").value || 0), ...prompt };
  each.result = await generate(
    { ...request, kv: each.engine.kv }, server.stats.chat, signal, (piece) => {
      each.answer += piece;
      each.text.textContent = each.answer;
    });
  const { gossamer } = each.result;
  const share = gossamer.kv_bytes_per_token / gossamer.kv_bytes_per_token_dense;
  each.below.textContent =
    `${facts(each.result)} · ${bytes(gossamer.kv_bytes)} of KV, ` +
    `${(100 * share).toFixed(0)}% of a dense cache`;
}

function mark(columns) {
  const parts = diff(columns[0].answer, columns[1].answer);
  columns.forEach((each, side) => {
    each.text.replaceChildren(...parts[side].map(([words, shared]) =>
      element(shared ? "span" : "mark", "", words)));
  });
  const words = parts[0].reduce((sum, [text]) => sum + text.split(/\s+/).filter(Boolean).length, 0);
  const equal = parts[0].filter(([, shared]) => shared)
    .reduce((sum, [text]) => sum + text.split(/\s+/).filter(Boolean).length, 0);
  const [first, second] = columns.map((each) => each.result.gossamer.kv_bytes_per_token);
  $("verdict").textContent =
    (equal === words && columns[0].answer.trim() === columns[1].answer.trim()
      ? "The same text. "
      : `${equal} of ${words} words are the same; the others are marked. `) +
    `Bytes of KV per token: ${bytes(first)} and ${bytes(second)}.`;
}

async function compare() {
  const text = $("compare-prompt").value.trim();
  if (!text || running || !server.stats) return;
  running = new AbortController();
  $("compare-stop").disabled = false;
  if (document.activeElement === $("compare-send")) $("compare-stop").focus();
  $("compare-send").disabled = true;
  $("columns").replaceChildren();
  $("verdict").textContent = "";
  const columns = server.stats.engines.slice(0, 2).map(column);
  const prompt = prompted([{ role: "user", content: text }]);
  try {
    await Promise.all(columns.map((each) => fill(each, prompt, running.signal)));
    mark(columns);
  } catch (error) {
    running.abort(); // the other one, too
    $("verdict").textContent = error.name === "AbortError" ? "Stopped." : error.message;
  } finally {
    running = null;
    $("compare-send").disabled = false;
    if (document.activeElement === $("compare-stop")) $("compare-send").focus();
    $("compare-stop").disabled = true;
  }
}

export function update(stats) {
  const two = stats.engines.length > 1;
  $("compare-hint").hidden = two;
  $("compare").hidden = !two;
}

export function setUp() {
  $("compare").addEventListener("submit", (event) => { event.preventDefault(); compare(); });
  $("compare-stop").addEventListener("click", () => running?.abort());
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
}
