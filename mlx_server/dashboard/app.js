// The page: watches the feed and shows what it says.

import { blockMap, bucketLabel, histogram, legend, niceTop, quantile, timeChart } from "/dashboard/charts.js";
import { startPlayground } from "/dashboard/playground.js";
import { apiKey, events, headers, keepKey, refused } from "/dashboard/stream.js";

const $ = (id) => document.getElementById(id);
const HISTORY_S = 600;
const CLOCK = { hour12: false };
const LONGEST_WAIT_MS = 15000;
let history = [];
let fields = [];
let facts = null;
let watching = null;
let waitMs = 1000;

// ---- words for figures

function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1024; unit++; }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1).replace(/\.0$/, "")} ${units[unit]}`;
}

function number(value, digits = 0) {
  if (value === null || value === undefined) return "–";
  return value.toLocaleString("en-US", { maximumFractionDigits: digits });
}

const percent = (share) => (share === null || share === undefined ? "–" : `${Math.round(share * 100)} %`);

function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  return value < 60 ? `${value.toFixed(1)} s` : `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}

function duration(value) {
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([size]) => value >= size);
  if (first < 0) return "0 s";
  return parts.slice(first, first + 2).map(([size, unit]) => {
    const count = Math.floor(value / size);
    value -= count * size;
    return `${count} ${unit}`;
  }).join(" ");
}

// ---- small helpers

function put(id, text) {
  const element = $(id);
  if (element.textContent !== text) element.textContent = text;
}

function cell(content, { tag = "td", number: isNumber = false } = {}) {
  const made = document.createElement(tag);
  if (isNumber) made.className = "num";
  if (tag === "th") made.scope = "row";
  made.append(content);
  return made;
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

function definitions(id, entries) {
  $(id).replaceChildren(...entries.flatMap(([name, value]) => [element("dt", "", name), element("dd", "", value)]));
}

const announce = (text) => put("announce", text);

// ---- the parts of the page

const KINDS = { ok: "ok", loading: "warn", restarting: "warn", draining: "warn", refusing: "bad", failed: "bad", "no connection": "bad" };

function showStatus(status, reason) {
  $("status").dataset.kind = KINDS[status] ?? "";
  const text = status === "ok" ? "serving" : status;
  if ($("status-text").textContent !== text) announce(`The daemon: ${text}. ${reason}`);
  put("status-text", text);
  $("banner").hidden = !reason;
  put("banner", reason);
}

function showTiles() {
  const { engine, rates, kv, memory, ttft } = facts;
  put("t-rate", number(rates.generated, rates.generated < 10 ? 1 : 0));
  put("t-prompt", `prompts ${number(rates.prompt)} tok/s`);
  put("t-running", number(engine?.running));
  put("t-waiting", engine ? `${number(engine.waiting)} waiting · ${number(engine.preemptions)} preempted` : "\u00a0");
  put("t-hit", percent(rates.hit_rate ?? rates.total_hit_rate));
  put("t-hit-all", `last minute; ${percent(rates.total_hit_rate)} in all`);
  const pool = kv ? kv.used_bytes + kv.cached_bytes + kv.free_bytes : 0;
  put("t-kv", kv ? percent(kv.used_bytes / Math.max(pool, 1)) : "–");
  put("t-kv-sub", kv ? `${bytes(kv.used_bytes)} of ${bytes(pool)}` : "\u00a0");
  put("t-ttft", seconds(quantile(ttft, 0.5)));
  put("t-ttft-sub", `median; 95 % in ${seconds(quantile(ttft, 0.95))}`);
  const level = memory?.level ?? "–";
  if (memory && $("t-level").textContent !== "–" && $("t-level").textContent !== level) announce(`Memory pressure is ${level}.`);
  put("t-level", level);
  put("t-level-sub", memory ? `${percent(memory.used_bytes / memory.total_bytes)} of ${bytes(memory.total_bytes)} in use` : "\u00a0");
  $("t-level-tile").dataset.kind = { normal: "ok", warn: "warn", critical: "bad" }[level] ?? "";
}

const MEMORY_COLUMNS = [
  ["level", "Level", (value) => value ?? "–"], ["machine_bytes", "Machine in use", bytes],
  ["engine_bytes", "Engine's process", bytes], ["weight_bytes", "Weights", bytes], ["kv_used_bytes", "KV in use", bytes],
  ["kv_cached_bytes", "KV cached", bytes], ["kv_free_bytes", "KV free", bytes],
];
const SPEED_COLUMNS = [
  ["generated", "Generated tok/s", number], ["prompt", "Prompt tok/s", number], ["running", "Running", number],
  ["waiting", "Waiting", number], ["hit_rate", "Cache hits", percent],
];

function showHistory() {
  const last = history.at(-1);
  if (facts.memory) {
    timeChart($("c-machine"), {
      points: history, series: [{ key: "machine_bytes", name: "machine", label: "In use", soft: true }],
      top: facts.memory.total_bytes, format: bytes, levels: true,
      label: `Memory of the machine: ${bytes(last.machine_bytes)} of ${bytes(facts.memory.total_bytes)}, level ${last.level}`,
    });
  }
  const parts = ["weight_bytes", "kv_used_bytes", "kv_cached_bytes", "kv_free_bytes"];
  const most = Math.max(...history.map((point) => parts.reduce((sum, part) => sum + point[part], 0)));
  timeChart($("c-engine"), {
    points: history, stacked: true, top: Math.max(most * 1.08, 1), format: bytes,
    series: [
      { key: "weight_bytes", name: "weights", label: "Weights" }, { key: "kv_used_bytes", name: "used", label: "KV in use" },
      { key: "kv_cached_bytes", name: "cached", label: "KV cached" }, { key: "kv_free_bytes", name: "free", label: "KV free" },
    ],
    label: `Weights ${bytes(last.weight_bytes)}, KV in use ${bytes(last.kv_used_bytes)}, cached ${bytes(last.kv_cached_bytes)}, free ${bytes(last.kv_free_bytes)}`,
  });
  const rates = history.map((point) => Math.max(point.generated ?? 0, point.prompt ?? 0));
  timeChart($("c-rate"), {
    points: history, top: niceTop(Math.max(...rates), 10), format: (value) => number(value, 1),
    series: [
      { key: "generated", name: "generated", label: "Generated", soft: true }, { key: "prompt", name: "prompt", label: "Prompts" },
    ],
    label: `Generating ${number(last.generated)} tokens per second, prompts ${number(last.prompt)}`,
  });
  timeChart($("c-queue"), {
    points: history, top: niceTop(Math.max(...history.map((point) => Math.max(point.running, point.waiting))), 4),
    format: (value) => number(value, 1),
    series: [{ key: "running", name: "running", label: "Running", soft: true }, { key: "waiting", name: "waiting", label: "Waiting" }],
    label: `${last.running} requests running, ${last.waiting} waiting`,
  });
  showTable("memory-table", MEMORY_COLUMNS);
  showTable("speed-table", SPEED_COLUMNS);
}

function showTable(id, columns) {
  const holder = $(id);
  if (!holder.open) return;
  const head = document.createElement("tr");
  head.append(...["Time", ...columns.map(([, title]) => title)].map((title, index) => {
    const made = element("th", index ? "num" : "", title);
    made.scope = "col";
    return made;
  }));
  holder.querySelector("thead").replaceChildren(head);
  const step = Math.max(1, Math.floor(history.length / 20));
  const shown = history.filter((_, index) => (history.length - 1 - index) % step === 0).reverse();
  holder.querySelector("tbody").replaceChildren(...shown.map((point) => {
    const row = document.createElement("tr");
    row.append(cell(new Date(point.time_s * 1000).toLocaleTimeString([], CLOCK), { tag: "th" }));
    row.append(...columns.map(([key, , format]) => cell(format(point[key]), { number: true })));
    return row;
  }));
}

function showBlocks() {
  const { engine, model } = facts;
  if (!engine || !model) return;
  const [used, cached, free] = [engine.blocks_used, engine.blocks_cached, engine.blocks_free];
  const group = blockMap($("c-blocks"), { used, cached, free }, `KV blocks: ${used} in use, ${cached} cached, ${free} free`);
  legend($("blocks-legend"), [
    ["used", "In use", number(used)], ["cached", "Cached", number(cached)], ["free", "Free", number(free)],
  ]);
  const square = group === 1 ? "A square is a block" : `A square is ${group} blocks`;
  put("blocks-note", `${square} of ${model.block_size} tokens, sorted by state. Evicted so far: ${number(engine.evictions)}.`);
}

function showLatencies() {
  for (const [id, noun] of [["ttft", "requests"], ["itl", "tokens"]]) {
    const { bounds_s, counts, sum_s } = facts[id];
    const total = counts.reduce((sum, count) => sum + count, 0);
    const text = total
      ? `Half within ${seconds(quantile(facts[id], 0.5))}, 95 % within ${seconds(quantile(facts[id], 0.95))}, mean ${seconds(sum_s / total)}; ${number(total)} ${noun} since the start.`
      : `No ${noun} yet.`;
    put(`${id}-note`, text);
    histogram($(`c-${id}`), facts[id], text);
    $(`${id}-table`).replaceChildren(...counts.map((count, index) => {
      const row = document.createElement("tr");
      row.append(cell(bucketLabel(bounds_s, index), { tag: "th" }), cell(number(count), { number: true }));
      return row;
    }));
  }
}

function showQueues() {
  $("queues").replaceChildren(...facts.queues.map(({ priority, starting, decoding }) => {
    const row = document.createElement("tr");
    row.append(cell(priority, { tag: "th" }), cell(number(starting), { number: true }), cell(number(decoding), { number: true }));
    return row;
  }));
  const { engine } = facts;
  if (!engine) return;
  definitions("counters", [
    ["Finished", number(engine.requests_finished)], ["Preempted", number(engine.preemptions)],
    ["Tokens generated", number(engine.generated_tokens)], ["Failed steps", number(engine.failed_steps)],
    ["Engine restarts", number(engine.restarts)],
  ]);
}

const rows = new Map();

function showRequests() {
  const { requests, hidden_requests: hidden } = facts;
  const alive = new Set(requests.map(({ id }) => id));
  for (const [id, row] of rows) {
    if (alive.has(id)) continue;
    const next = row.nextElementSibling ?? row.previousElementSibling;
    const hadFocus = row.contains(document.activeElement);
    row.remove();
    rows.delete(id);
    if (hadFocus) (next?.querySelector("button") ?? $("live-h")).focus();
  }
  for (const request of requests) {
    if (!rows.has(request.id)) {
      rows.set(request.id, requestRow(request));
      $("requests").append(rows.get(request.id));
    }
    fillRow(rows.get(request.id), request);
  }
  put("live-count", requests.length ? String(requests.length) : "");
  $("live-empty").hidden = requests.length > 0 && !hidden;
  put("live-empty", hidden ? `${hidden} of other API keys are not shown.` : "Nothing is being answered.");
}

function requestRow({ id, key_id: key }) {
  const row = document.createElement("tr");
  row.dataset.id = id;
  const name = element("code", "", id.replace(/^chatcmpl-/, "").slice(0, 10));
  name.title = id;
  const first = cell(name, { tag: "th" });
  if (key) first.append(` key ${key}`);
  row.append(first);
  for (let column = 0; column < 7; column++) row.append(cell("", { number: column > 1 }));
  row.cells[1].replaceChildren(element("span", "tag", ""));
  const button = element("button", "end", "Cancel");
  button.type = "button";
  button.setAttribute("aria-label", `Cancel request ${name.textContent}`);
  button.addEventListener("click", () => cancel(id, button));
  row.append(cell(button, { number: true }));
  return row;
}

function fillRow(row, request) {
  const tag = row.cells[1].firstChild;
  tag.dataset.state = request.state;
  tag.textContent = request.state;
  const texts = [
    request.priority, number(request.prompt_tokens), number(request.cached_tokens), number(request.generated_tokens),
    number(request.tokens_per_s, 1), seconds(request.age_s),
  ];
  texts.forEach((text, index) => { row.cells[index + 2].textContent = text; });
}

async function cancel(id, button) {
  button.disabled = true;
  try {
    const response = await fetch(`/dashboard/cancel/${encodeURIComponent(id)}`, { method: "POST", headers: headers() });
    announce(response.ok ? "The request was cancelled." : `Not cancelled: ${await refused(response)}`);
  } catch {
    announce("Not cancelled: the daemon does not answer.");
    button.disabled = false;
  }
}

function showModel() {
  const { model, engine } = facts;
  if (!model) return;
  definitions("model", [
    ["Name", model.name], ["Architecture", model.type], ["Longest request", `${number(model.max_model_len)} tokens`],
    ["Weights", bytes(model.weight_bytes)], ["KV per token", bytes(model.kv_bytes_per_token)],
    ["Rows at once", number(model.max_num_seqs)],
    ["MLX memory", engine ? `${bytes(engine.active_bytes)}, peak ${bytes(engine.peak_bytes)}` : "–"],
  ]);
}

function showErrors() {
  $("errors").replaceChildren(...facts.errors.toReversed().map((error) => {
    const row = document.createElement("tr");
    row.title = error.request_id;
    row.append(
      cell(new Date(error.time_s * 1000).toLocaleTimeString([], CLOCK)), cell(String(error.status), { number: true }),
      cell(element("code", "", error.code)), cell(element("code", "", `${error.method} ${error.path}`)),
    );
    return row;
  }));
  $("errors-empty").hidden = facts.errors.length > 0;
}

function show() {
  if (!facts) return;
  const refuses = facts.status === "ok" && facts.memory?.level === "critical";
  if (refuses) showStatus("refusing", "This machine is short of memory: new requests are refused until that is over.");
  else showStatus(facts.status, facts.reason);
  showTiles();
  showHistory();
  showBlocks();
  showLatencies();
  showQueues();
  showRequests();
  showModel();
  showErrors();
  put("version", facts.version);
  put("uptime", duration(facts.uptime_s));
}

// ---- the feed

function takePoint(values) {
  return Object.fromEntries(fields.map((field, index) => [field, values[index]]));
}

function take({ name, data }) {
  const value = JSON.parse(data);
  if (name === "history") {
    fields = value.fields;
    history = value.points.map(takePoint);
  } else if (name === "facts") {
    facts = value;
    history.push(takePoint(value.point));
    while (history.length && history[0].time_s < value.time_s - HISTORY_S) history.shift();
    waitMs = 1000;
    show();
  }
}

async function watch() {
  watching?.abort();
  const mine = (watching = new AbortController());
  while (!mine.signal.aborted) {
    try {
      const response = await fetch("/dashboard/events", { headers: headers(), signal: mine.signal, cache: "no-store" });
      if (response.status === 401) {
        askForKey(apiKey() ? "This key is not valid here." : "");
        return;
      }
      if (!response.ok) throw new Error(await refused(response));
      for await (const event of events(response.body)) take(event);
    } catch (error) {
      if (mine.signal.aborted) return;
      showStatus("no connection", error instanceof TypeError ? "The daemon does not answer; trying again." : error.message);
    }
    await new Promise((resolve) => { setTimeout(resolve, waitMs); });
    waitMs = Math.min(waitMs * 2, LONGEST_WAIT_MS);
  }
}

// ---- key, theme, start

function askForKey(problem) {
  showStatus("no connection", problem || "An API key is needed.");
  put("key-why", problem || "This daemon shows its figures to those who have a key. It is kept until this tab is closed.");
  $("key-input").value = "";
  if (!$("key-dialog").open) $("key-dialog").showModal();
}

function startKey() {
  $("key-button").addEventListener("click", () => askForKeyByHand());
  $("key-cancel").addEventListener("click", () => $("key-dialog").close());
  $("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    keepKey($("key-input").value.trim());
    $("key-dialog").close();
    watch();
  });
}

function askForKeyByHand() {
  $("key-input").value = "";
  $("key-dialog").showModal();
}

const THEMES = ["auto", "light", "dark"];

function showTheme(theme) {
  document.documentElement.dataset.theme = theme;
  put("theme", `Theme: ${theme}`);
}

function startTheme() {
  const kept = localStorage.getItem("mlx-serve-theme");
  showTheme(THEMES.includes(kept) ? kept : "auto");
  $("theme").addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
    localStorage.setItem("mlx-serve-theme", next);
    showTheme(next);
  });
}

startTheme();
startKey();
startPlayground();
for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", show);
let resized = 0;
window.addEventListener("resize", () => {
  cancelAnimationFrame(resized);
  resized = requestAnimationFrame(show);
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) watching?.abort();
  else watch();
});
if (!document.hidden) watch();
