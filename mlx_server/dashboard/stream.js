// Requests of this page: the key, refusals, and server-sent events read with fetch, which unlike EventSource can send one.

const KEY = "mlx-serve-key";

export function apiKey() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function keepKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

export function headers() {
  return apiKey() ? { authorization: `Bearer ${apiKey()}` } : {};
}

export async function refused(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the daemon answered ${response.status}`;
  }
}

export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        let name = "message";
        const data = [];
        for (const line of block.split("\n")) {
          if (line.startsWith("event: ")) name = line.slice(7);
          else if (line.startsWith("data: ")) data.push(line.slice(6));
        }
        if (data.length) yield { name, data: data.join("\n") };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
