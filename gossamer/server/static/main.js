// Puts the parts together: tabs, theme, key, and a look at the server every second.

import { key, models, stats } from "./api.js";
import * as chat from "./chat.js";
import * as compare from "./compare.js";
import * as panel from "./panel.js";
import { $, element, server } from "./state.js";

const TABS = ["chat", "compare"];
const PERIOD = 1000; // ms

function choose(name, focus) {
  for (const each of TABS) {
    const tab = $(`tab-${each}`);
    const chosen = each === name;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    $(`view-${each}`).hidden = !chosen;
    if (chosen && focus) tab.focus();
  }
}

function setUpTabs() {
  for (const name of TABS) {
    $(`tab-${name}`).addEventListener("click", () => choose(name));
    $(`tab-${name}`).addEventListener("keydown", (event) => {
      const at = TABS.indexOf(name);
      const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: -1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      choose(TABS.at(to % TABS.length), true);
    });
  }
}

function setUpForms() {
  for (const id of ["prompt", "compare-prompt"]) {
    $(id).addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      $(id).form.requestSubmit();
    });
  }
  $("key").value = key.get();
  $("key").addEventListener("change", () => { key.set($("key").value); look(); });
}

function setUpTheme() {
  const chosen = localStorage.getItem("gossamer-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
  $("theme").addEventListener("click", () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const now = document.documentElement.dataset.theme ?? dark;
    const next = now === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    localStorage.setItem("gossamer-theme", next);
  });
}

function status(text, bad) {
  if ($("status").textContent !== text) $("status").textContent = text;
  $("status").classList.toggle("bad", bad);
}

async function look() {
  try {
    const found = await stats();
    if (!server.stats) {
      $("model").textContent = `${found.model} on ${found.engines[0].device}`;
      $("kv").replaceChildren(...found.engines.map((each) => element("option", "", each.kv)));
      $("lora").replaceChildren(...(await models()).map((each) => element("option", "", each)));
      for (const option of [...$("kv").options, ...$("lora").options]) {
        option.value = option.textContent;
      }
    }
    server.stats = found;
    status(found.status, found.status !== "ok");
    panel.update(found);
    compare.update(found);
  } catch (error) {
    const locked = error.status === 401;
    status(locked ? "needs the API key" : "not reachable", true);
    if (locked) $("access").open = true;
  }
}

async function watch() {
  for (;;) {
    if (!document.hidden) await look();
    await new Promise((done) => setTimeout(done, PERIOD));
  }
}

setUpTabs();
setUpForms();
setUpTheme();
chat.setUp();
compare.setUp();
if (matchMedia("(max-width: 52rem)").matches) $("settings").open = false;
$("prompt").focus();
watch();
