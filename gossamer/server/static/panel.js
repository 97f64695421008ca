// The live panel: what the engines are doing now.

import { $, bytes, element } from "./state.js";

const POINTS = 60; // seconds of history
const SVG = "http://www.w3.org/2000/svg";
const engines = new Map();

function card(kv) {
  const box = element("article", "engine");
  const list = element("dl");
  const spark = document.createElementNS(SVG, "svg");
  const line = document.createElementNS(SVG, "polyline");
  spark.setAttribute("class", "spark");
  spark.setAttribute("viewBox", `0 0 ${POINTS - 1} 100`);
  spark.setAttribute("preserveAspectRatio", "none");
  spark.setAttribute("aria-hidden", "true");
  spark.append(line);
  box.append(element("h3", "", kv), list, spark);
  $("engines").append(box);
  return { list, line, rates: [], rows: new Map() };
}

function row(card, name, value, share) {
  if (!card.rows.has(name)) {
    const term = element("dt", "", name);
    const text = element("dd");
    card.list.append(term, text);
    const made = { text, fill: null };
    if (share !== undefined) {
      const bar = element("dd", "bar"); // what a list of terms may hold
      made.fill = element("span");
      bar.setAttribute("aria-hidden", "true");
      bar.append(made.fill);
      card.list.append(bar);
    }
    card.rows.set(name, made);
  }
  const { text, fill } = card.rows.get(name);
  text.textContent = value;
  text.dataset.name = name;
  if (fill) fill.style.width = `${Math.round(100 * Math.min(1, share))}%`;
}

function pages({ used, cached, total }) {
  return `${used}/${total}${cached ? `, ${cached} cached` : ""}`;
}

function kernel({ kernel, against_dense: factor }) {
  return factor === null ? kernel : `${kernel}, ${factor.toFixed(2)}x of dense`;
}

function show(engine) {
  if (!engines.has(engine.kv)) engines.set(engine.kv, card(engine.kv));
  const known = engines.get(engine.kv);
  const { kv_bytes: now, kv_bytes_dense: dense, stored_pages: stored, dense_pages: open } = engine;
  row(known, "tokens/s", engine.tokens_per_second.toFixed(1));
  row(known, "running, waiting", `${engine.running}, ${engine.waiting}`);
  row(known, "KV memory now", bytes(now), dense ? now / Math.max(now, dense) : 0);
  row(known, "dense would need", bytes(dense), dense ? dense / Math.max(now, dense) : 0);
  row(known, open.total ? "compressed pages" : "pages", pages(stored), stored.used / stored.total);
  if (open.total) row(known, "window pages", pages(open), open.used / open.total);
  if (engine.decode) row(known, "decodes by", kernel(engine.decode));
  row(known, "tokens written", engine.output_tokens.toLocaleString("en"));
  row(known, "found by prefix", engine.cached_tokens.toLocaleString("en"));
  row(known, "preemptions", String(engine.preemptions));
  known.rates.push(engine.tokens_per_second);
  known.rates.splice(0, known.rates.length - POINTS);
  const most = Math.max(1, ...known.rates);
  const points = known.rates.map((rate, i) =>
    `${POINTS - known.rates.length + i},${98 - (94 * rate) / most}`);
  known.line.setAttribute("points", points.join(" "));
}

export function update(stats) {
  stats.engines.forEach(show);
}
