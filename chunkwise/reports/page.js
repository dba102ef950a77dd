"use strict";
// Draws the curves of the page from the numbers in #data. Texts are set as text, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
// Okabe and Ito's, which people tell apart who do not see red or green, without their yellow, and a grey.
const COLOURS = ["#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f"];
const W = 420, H = 230, LEFT = 52, RIGHT = 16, TOP = 8, BOTTOM = 24;
const hidden = new Set();
let smooth = 0, logarithmic = false;

function svg(tag, attributes, parent, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}
function html(tag, parent, text) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}
// Four digits, or as many as tell apart two numbers that lie `step` apart.
function short(value, step = 0) {
  const size = Math.abs(value);
  const apart = step > 0 && size > 0 ? Math.ceil(Math.log10(size / step)) : 0;
  const digits = Math.min(15, Math.max(3, apart));
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(Math.max(2, Math.min(15, apart)));
  return String(Number(value.toPrecision(digits + 1)));
}
function ticks(low, high, least = 0) {
  const rough = Math.max((high - low) / 5, least), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((x) => x * power).find((x) => x >= rough);
  const found = [], first = Math.ceil(low / step);
  for (let k = 0; k < 8 && (first + k) * step <= high + step * 1e-9; k++) found.push((first + k) * step);
  return found;
}
// Exponential moving average, by the weight of what was before; of equal values exactly these.
function smoothed(values) {
  let mean = 0, weight = 0;
  return values.map((value) => {
    weight = smooth * weight + (1 - smooth);
    mean += (1 - smooth) / weight * (value - mean);
    return mean;
  });
}
function colour(series) { return COLOURS[data.keys.indexOf(series.key) % COLOURS.length]; }
function turn(series) { return Math.floor(data.keys.indexOf(series.key) / COLOURS.length) % 3; }
function dashes(series) { return ["none", "6 3", "2 3"][turn(series)]; }

function draw(card, chart) {
  card.replaceChildren();
  html("h3", card, chart.name);
  const shown = chart.series.filter((series) => !hidden.has(series.key));
  const picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": chart.name }, card);
  const values = html("div", card);
  values.className = "values";
  if (!shown.length) return;
  const lines = shown.map((series) => ({ ...series, y: chart.smooth ? smoothed(series.y) : series.y }));
  const log = logarithmic && lines.every((line) => line.y.every((y) => y > 0));
  const scale = log ? Math.log10 : (y) => y;
  const all = lines.flatMap((line) => [...line.y, ...(line.low ?? []), ...(line.high ?? [])].map(scale))
    .filter(Number.isFinite);
  let low = Math.min(...all), high = Math.max(...all);
  if (chart.name === "success" && !log) [low, high] = [0, 1];
  // Not the same to the last bits is the same: no ticks fit between.
  if (high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high))) { low -= Math.abs(low) / 10 || 0.5; high += Math.abs(high) / 10 || 0.5; }
  let first = Math.min(...lines.map((line) => line.x[0]));
  if (lines.every((line) => line.x.at(-1) === first)) first = 0;  // one point each: by itself it has no scale
  const last = Math.max(...lines.map((line) => line.x.at(-1)), first + 1);
  const px = (x) => LEFT + (x - first) / (last - first) * (W - LEFT - RIGHT);
  const py = (y) => H - BOTTOM - (scale(y) - low) / (high - low) * (H - TOP - BOTTOM);
  const across = ticks(first, last, 1), upwards = ticks(low, high);
  for (const tick of upwards) {
    const y = H - BOTTOM - (tick - low) / (high - low) * (H - TOP - BOTTOM);
    svg("line", { class: "axis", x1: LEFT, x2: W - RIGHT, y1: y, y2: y }, picture);
    svg("text", { class: "tick", x: LEFT - 5, y: y + 3, "text-anchor": "end" }, picture,
      log ? short(10 ** tick) : short(tick, upwards[1] - upwards[0]));
  }
  for (const tick of across) {
    const edge = px(tick) > W - 30;  // where a label in the middle would be cut
    svg("text", { class: "tick", x: edge ? W - 1 : px(tick), y: H - 8, "text-anchor": edge ? "end" : "middle" }, picture,
      short(tick, across[1] - across[0]));
  }
  svg("text", { class: "tick", x: 0, y: H - 8 }, picture, "updates");
  for (const line of lines) {
    if (line.low) {
      const there = line.x.map((x, k) => [x, line.low[k], line.high[k]]).filter((p) => p[1] !== null && (!log || p[1] > 0));
      const upper = there.map((p) => `${px(p[0])},${py(p[2])}`), lower = there.map((p) => `${px(p[0])},${py(p[1])}`);
      svg("polygon", { points: [...upper, ...lower.reverse()].join(" "), fill: colour(line), "fill-opacity": 0.15,
        stroke: line.each ? colour(line) : "none", "stroke-width": 0.6, "stroke-opacity": 0.6 }, picture);
      for (const p of line.each ? [] : there)
        svg("line", { x1: px(p[0]), x2: px(p[0]), y1: py(p[1]), y2: py(p[2]), stroke: colour(line), opacity: 0.6 }, picture);
    }
    const points = line.x.map((x, k) => `${px(x)},${py(line.y[k])}`).join(" ");
    svg("polyline", { points, fill: "none", stroke: colour(line), "stroke-width": 1.6, "stroke-dasharray": dashes(line) },
      picture);
    if (line.x.length < 40)
      line.x.forEach((x, k) => svg("circle", { cx: px(x), cy: py(line.y[k]), r: 2.4, fill: colour(line) }, picture));
  }
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: H - BOTTOM, visibility: "hidden" }, picture);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const x = first + ((event.clientX - box.left) / box.width * W - LEFT) / (W - LEFT - RIGHT) * (last - first);
    const texts = [];
    let at = first;
    for (const line of lines) {
      let near = 0;
      line.x.forEach((step, k) => { if (Math.abs(step - x) < Math.abs(line.x[near] - x)) near = k; });
      at = line.x[near];
      const of = line.each ? `, mean of ${line.each} points` : "";
      const range = line.low && line.low[near] !== null ? ` (${short(line.low[near])} to ${short(line.high[near])}${of})` : "";
      texts.push(`${line.key || chart.name} ${short(line.y[near])}${range}`);
    }
    for (const name of ["x1", "x2"]) cursor.setAttribute(name, px(at));
    cursor.setAttribute("visibility", "visible");
    values.textContent = `${at}: ${texts.join("   ")}`;
  });
  picture.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); values.textContent = ""; });
}

function redraw() {
  const place = document.getElementById("charts");
  data.charts.forEach((chart, k) => draw(place.children[k], chart));
}
function tools() {
  const place = document.getElementById("tools");
  for (const key of data.keys.filter((key) => key)) {
    const button = html("button", place);
    const mark = html("span", button);
    mark.className = "key";
    mark.style.borderTopColor = colour({ key });
    mark.style.borderTopStyle = ["solid", "dashed", "dotted"][turn({ key })];
    button.append(key);
    button.addEventListener("click", () => {
      hidden.has(key) ? hidden.delete(key) : hidden.add(key);
      button.classList.toggle("off", hidden.has(key));
      redraw();
    });
  }
  const label = html("label", place, "smoothing of losses ");
  const slider = html("input", label);
  Object.assign(slider, { type: "range", min: 0, max: 0.98, step: 0.02, value: 0 });
  slider.addEventListener("input", () => { smooth = Number(slider.value); redraw(); });
  const box = html("label", place, "logarithmic ");
  const check = html("input", box);
  check.type = "checkbox";
  check.addEventListener("change", () => { logarithmic = check.checked; redraw(); });
}
// Videos of one initial state begin together, and the others follow where one is moved.
function together(row) {
  const films = [...row.querySelectorAll("video")], button = row.querySelector("button");
  button.addEventListener("click", () => {
    const going = films.some((film) => !film.paused);
    for (const film of films) {
      if (going) { film.pause(); continue; }
      film.loop = false;  // the shorter one waits at its end
      film.currentTime = 0;
      film.play();
    }
  });
  const tell = () => { button.textContent = films.some((film) => !film.paused) ? "stop" : "play together"; };
  for (const film of films) {
    for (const event of ["play", "pause", "ended"]) film.addEventListener(event, tell);
    film.addEventListener("seeked", () => {
      if (!film.paused) return;
      for (const other of films) if (Math.abs(other.currentTime - film.currentTime) > 0.04 &&
        film.currentTime <= other.duration) other.currentTime = film.currentTime;
    });
  }
}
document.querySelectorAll(".together").forEach(together);
const place = document.getElementById("charts");
for (const _ of data.charts) html("div", place).className = "card";
tools();
redraw();
