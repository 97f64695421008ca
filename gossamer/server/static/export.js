// A conversation as a file: JSON that the API takes as it is, or Markdown to read.

import { $, sampling, server } from "./state.js";

const NAMES = { system: "System", user: "You", assistant: "Answer" };

// What was asked for and said: the body of a request that would go on from here.
function asJSON(messages) {
  const about = { exported: new Date().toISOString(), server: server.stats.version };
  const request = { ...sampling(), kv: $("kv").value, messages };
  return JSON.stringify({ ...about, request }, null, 2);
}

function section({ role, content, ...more }) {
  const parts = [`## ${NAMES[role] ?? role}`, content || ""];
  if (Object.keys(more).length) parts.push(`~~~json\n${JSON.stringify(more, null, 2)}\n~~~`);
  return parts.filter(Boolean).join("\n\n");
}

function asMarkdown(messages) {
  const title = `# ${sampling().model}, ${new Date().toLocaleString("en")}`;
  return `${[title, ...messages.map(section)].join("\n\n")}\n`;
}

function save(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

// conversation: gives the messages. The menu closes with a choice, and with Escape.
export function setUp(conversation) {
  const menu = $("export");
  const close = () => { menu.open = false; menu.querySelector("summary").focus(); };
  const write = {
    "export-json": () => save("conversation.json", "application/json", asJSON(conversation())),
    "export-markdown": () => save("conversation.md", "text/markdown", asMarkdown(conversation())),
  };
  for (const [id, action] of Object.entries(write)) {
    $(id).addEventListener("click", () => { action(); close(); });
  }
  menu.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && menu.open) { event.stopPropagation(); close(); }
  });
}
