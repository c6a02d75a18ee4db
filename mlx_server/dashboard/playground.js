// A chat with the served model, streamed.

import { events, headers, refused } from "/dashboard/stream.js";

const $ = (id) => document.getElementById(id);
const messages = [];
let running = null;

function say(kind, text) {
  $("talk").querySelector(".hint")?.remove();
  const line = document.createElement("p");
  line.className = kind;
  line.textContent = text;
  $("talk").append(line);
  $("talk").scrollTop = $("talk").scrollHeight;
  return line;
}

function greet() {
  say("hint", "Nothing said yet. What you write here goes to this daemon and nowhere else.");
}

async function answer(text) {
  const talk = $("talk");
  messages.push({ role: "user", content: text });
  say("user", text);
  const line = say("assistant", "…");
  let reply = "", usage = null, first = null;
  const began = performance.now();
  running = new AbortController();
  talk.setAttribute("aria-busy", "true");
  $("chat-send").disabled = true;
  $("chat-stop").disabled = false;
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json", ...headers() },
      body: JSON.stringify({
        model: "default", messages, stream: true, stream_options: { include_usage: true },
        max_tokens: Math.max(1, Number($("chat-max").value) || 256),
      }),
      signal: running.signal,
    });
    if (!response.ok) throw new Error(await refused(response));
    for await (const { data } of events(response.body)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      usage = chunk.usage ?? usage;
      const piece = chunk.choices[0]?.delta?.content ?? "";
      if (!piece) continue;
      first ??= performance.now();
      reply += piece;
      const atEnd = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 40;
      line.textContent = reply;
      if (atEnd) talk.scrollTop = talk.scrollHeight;
    }
    finish(usage, began, first);
  } catch (error) {
    if (error.name === "AbortError") say("meta", "stopped");
    else say("failed", error.message);
  } finally {
    if (reply) messages.push({ role: "assistant", content: reply });
    else { line.remove(); messages.pop(); }
    running = null;
    talk.removeAttribute("aria-busy");
    $("chat-send").disabled = false;
    $("chat-stop").disabled = true;
  }
}

function finish(usage, began, first) {
  const parts = [];
  if (usage) parts.push(`${usage.completion_tokens} tokens`);
  if (first !== null) parts.push(`first after ${Math.round(first - began)} ms`);
  const seconds = (performance.now() - (first ?? began)) / 1000;
  if (usage && usage.completion_tokens > 1) parts.push(`${((usage.completion_tokens - 1) / seconds).toFixed(0)} tok/s`);
  if (usage?.prompt_tokens_details?.cached_tokens) parts.push(`${usage.prompt_tokens_details.cached_tokens} cached`);
  say("meta", parts.join(" · "));
}

export function startPlayground() {
  greet();
  $("chat-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = $("chat-text").value.trim();
    if (!text || running) return;
    $("chat-text").value = "";
    answer(text);
  });
  $("chat-text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      $("chat-form").requestSubmit();
    }
  });
  $("chat-stop").addEventListener("click", () => {
    running?.abort();
    $("chat-text").focus();
  });
  $("chat-clear").addEventListener("click", () => {
    running?.abort();
    messages.length = 0;
    $("talk").replaceChildren();
    greet();
    $("chat-text").focus();
  });
}
