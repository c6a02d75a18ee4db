// Small SVG charts. Each draws anew at its own width; colours come from the style sheet's classes.

const NS = "http://www.w3.org/2000/svg";
const GAP_S = 4; // a longer silence breaks the line

function node(name, attributes, text) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function canvas(holder, height, label) {
  const width = Math.max(holder.clientWidth, 120);
  const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label });
  holder.replaceChildren(svg);
  return { svg, width };
}

export function niceTop(value, step = 1) {
  if (value <= 0) return step;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((top) => top >= value);
}

export function legend(list, entries) {
  list.replaceChildren(...entries.map(([name, label, value]) => {
    const item = document.createElement("li");
    const mark = node("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" });
    mark.append(node("rect", { width: 10, height: 10, rx: 3, class: `s-${name}` }));
    item.append(mark, `${label} `);
    if (value !== undefined) {
      const strong = document.createElement("b");
      strong.textContent = value;
      item.append(strong);
    }
    return item;
  }));
}

// points: objects with time_s. series: [{key, label}], bottom first where stacked. top: of the scale.
export function timeChart(holder, { points, series, stacked, top, format, label, levels }) {
  let list = holder.nextElementSibling;
  if (!list || !list.classList.contains("legend")) {
    list = document.createElement("ul");
    list.className = "legend";
    holder.after(list);
  }
  const last = points.at(-1);
  const entries = series.map(({ key, name, label: text }) => [name, text, last ? format(last[key]) : undefined]);
  const short = levels ? ["warn", "critical"].filter((level) => points.some((point) => point.level === level)) : [];
  legend(list, [...entries, ...short.map((level) => [level, `Level ${level}`])]);
  const height = 168, left = 52, bottom = 20, head = 8;
  const { svg, width } = canvas(holder, height, label);
  const end = last ? last.time_s : 0;
  const span = Math.min(600, Math.max(60, last ? end - points[0].time_s : 0));
  const x = (time) => left + (width - left - 6) * (1 - (end - time) / span);
  const y = (value) => height - bottom - (height - bottom - head) * Math.min(value / top, 1);
  for (const share of [0, 0.5, 1]) {
    const at = y(share * top);
    svg.append(node("line", { class: "grid", x1: left, x2: width - 6, y1: at, y2: at }));
    svg.append(node("text", { x: left - 8, y: at + 4, "text-anchor": "end" }, format(share * top)));
  }
  for (const [share, anchor] of [[0, "start"], [0.5, "middle"], [1, "end"]]) {
    const ago = Math.round(span * (1 - share));
    const text = ago === 0 ? "now" : ago >= 120 ? `${Math.round(ago / 60)} min ago` : `${ago} s ago`;
    svg.append(node("text", { x: left + (width - left - 6) * share, y: height - 3, "text-anchor": anchor }, text));
  }
  const runs = [];
  for (const point of points) {
    if (point.time_s < end - span) continue;
    const run = runs.at(-1);
    if (run && point.time_s - run.at(-1).time_s <= GAP_S) run.push(point);
    else runs.push([point]);
  }
  if (levels) for (const run of runs) bands(svg, run, x, head, height - bottom);
  for (const run of runs) (stacked ? drawStack : drawLines)(svg, run, series, x, y);
}

function bands(svg, run, x, from, to) {
  let start = 0;
  run.forEach((point, index) => {
    const next = run[index + 1];
    if (next && next.level === point.level) return;
    if (point.level === "warn" || point.level === "critical") {
      const left = x(run[start].time_s);
      const width = Math.max(2, x((next ?? point).time_s) - left);
      svg.append(node("rect", { class: `band-${point.level}`, x: left, y: from, width, height: to - from }));
    }
    start = index + 1;
  });
}

function path(run, x, y, value) {
  return run.map((point, i) => `${i ? "L" : "M"}${x(point.time_s).toFixed(1)} ${y(value(point) ?? 0).toFixed(1)}`).join("");
}

function drawLines(svg, run, series, x, y) {
  for (const { key, name, soft } of series) {
    const line = path(run, x, y, (point) => point[key]);
    const [from, to] = [x(run[0].time_s), x(run.at(-1).time_s)].map((value) => value.toFixed(1));
    if (soft) svg.append(node("path", { class: `s-${name} soft`, d: `${line}L${to} ${y(0)}L${from} ${y(0)}Z` }));
    svg.append(node("path", { class: `s-${name} line`, d: line }));
  }
}

function drawStack(svg, run, series, x, y) {
  const below = run.map(() => 0);
  for (const { key, name } of series) {
    const lower = [...below];
    run.forEach((point, i) => { below[i] += point[key] ?? 0; });
    const up = run.map((point, i) => `${i ? "L" : "M"}${x(point.time_s).toFixed(1)} ${y(below[i]).toFixed(1)}`).join("");
    const down = run.map((point, i) => `L${x(point.time_s).toFixed(1)} ${y(lower[i]).toFixed(1)}`).reverse().join("");
    svg.append(node("path", { class: `s-${name} area`, d: `${up}${down}Z` }));
  }
}

// Bars of the buckets that hold something, and one on each side.
export function histogram(holder, { bounds_s, counts }, label) {
  const height = 150, bottom = 20, head = 18;
  const { svg, width } = canvas(holder, height, label);
  const filled = counts.flatMap((count, index) => (count ? [index] : []));
  const from = Math.max(0, (filled[0] ?? 2) - 2);
  const to = Math.min(counts.length - 1, (filled.at(-1) ?? 6) + 2);
  const most = Math.max(1, ...counts);
  const step = width / (to - from + 1);
  const every = Math.ceil(50 / step);
  for (let index = from; index <= to; index++) {
    const tall = (height - bottom - head) * (counts[index] / most);
    const left = (index - from) * step;
    const middle = left + step / 2;
    const bar = Math.min(step * 0.72, 64);
    svg.append(node("rect", { class: "bar", x: middle - bar / 2, y: height - bottom - tall, width: bar, height: tall, rx: 3 }));
    if (counts[index] && (step >= 30 || counts[index] === most)) {
      svg.append(node("text", { x: middle, y: height - bottom - tall - 5, "text-anchor": "middle" }, shortCount(counts[index])));
    }
    if ((index - from) % every === 0) {
      svg.append(node("text", { x: middle, y: height - 4, "text-anchor": "middle" }, bucketLabel(bounds_s, index)));
    }
  }
  svg.append(node("line", { class: "grid", x1: 0, x2: width, y1: height - bottom, y2: height - bottom }));
}

function shortCount(count) {
  return count < 10000 ? String(count) : `${Math.round(count / 1000)}k`;
}

export function bucketLabel(bounds, index) {
  const one = (bound) => (bound < 1 ? `${+(bound * 1000).toFixed(1)} ms` : `${bound} s`);
  return index < bounds.length ? one(bounds[index]) : `> ${one(bounds.at(-1))}`;
}

// The value below which a share of the observations lies, between a bucket's ends by proportion; null without any.
export function quantile({ bounds_s, counts }, share) {
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (!total) return null;
  let seen = 0;
  for (let index = 0; index < counts.length; index++) {
    if (seen + counts[index] >= share * total && counts[index]) {
      if (index >= bounds_s.length) return bounds_s.at(-1);
      const low = index ? bounds_s[index - 1] : 0;
      return low + (bounds_s[index] - low) * ((share * total - seen) / counts[index]);
    }
    seen += counts[index];
  }
  return bounds_s.at(-1);
}

// A square for every group of blocks: those in use first, then cached, then free. Returns blocks a square.
export function blockMap(holder, { used, cached, free }, label) {
  const total = used + cached + free;
  const width = Math.max(holder.clientWidth, 120), tallest = 176;
  const fits = (size) => Math.floor(width / size) * Math.floor(tallest / size);
  const size = [26, 22, 18].find((candidate) => fits(candidate) >= total) ?? 14;
  const columns = Math.floor(width / size);
  const group = Math.max(1, Math.ceil(total / fits(size)));
  const cells = Math.ceil(total / group);
  const { svg } = canvas(holder, Math.max(1, Math.ceil(cells / columns)) * size, label);
  const states = [["used", used], ["cached", cached], ["free", free]];
  let done = 0, before = 0;
  for (const [name, count] of states) {
    before += count;
    const end = name === "free" ? cells : Math.round((before / Math.max(total, 1)) * cells);
    let shape = "";
    for (; done < end; done++) {
      shape += `M${(done % columns) * size + 1} ${Math.floor(done / columns) * size + 1}h${size - 2}v${size - 2}h${2 - size}z`;
    }
    if (shape) svg.append(node("path", { class: `s-${name} area`, d: shape }));
  }
  return group;
}
