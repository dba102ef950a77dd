// The page of `chunkwise view`. Texts of a dataset become text nodes, never markup; images are drawn on canvases.
"use strict";

const ROW = 44; // pixels of an episode in the list, as in view.css
const POLL_MS = 700;
const KEEP = 48; // decoded frames that are kept for going back and forth
const $ = (id) => document.getElementById(id);

const state = {
  dataset: null,
  episodes: [], // by number, as poll makes them
  change: 0,
  listed: [], // numbers that pass the filter, in order
  episode: null, // number
  content: null, // of /episode/E, with columns as arrays
  length: 0,
  frame: 0,
  span: null, // [first, end) frames of the plots
  playing: false,
  window: null,
  chunk: null,
  turn: 0, // counts episodes that were opened, so that late answers are dropped
};

// ---- asking the server

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(await answer.text());
  return answer;
}
const askJson = async (path) => (await ask(path)).json();

const frames = new Map();
function bitmap(path) {
  if (!frames.has(path)) {
    const found = ask(path).then((answer) => answer.blob()).then((blob) => createImageBitmap(blob));
    found.catch(() => frames.delete(path));
    frames.set(path, found);
    while (frames.size > KEEP) frames.delete(frames.keys().next().value);
  }
  return frames.get(path);
}

function element(kind, text, name) {
  const made = document.createElement(kind);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}

function tell(error) {
  $("error").textContent = error ? String(error.message || error) : "";
  $("error").hidden = !error;
}

// ---- the list of episodes

async function poll() {
  try {
    const found = await askJson(`episodes/${state.change}`);
    state.change = found.number;
    for (const row of found.episodes) {
      const [number, name, task, success, length, reward, group, advantage, label, problems] = row;
      state.episodes[number] = { number, name, task, success, length, reward, group, advantage, label, problems };
    }
    if (found.episodes.length) {
      showGroups();
      refilter();
    }
    const known = state.episodes.filter((one) => one.length !== null);
    const total = known.reduce((sum, one) => sum + one.length, 0);
    const bad = state.episodes.filter((one) => one.problems.length).length;
    const words = [`${state.episodes.length} episodes`, `${total.toLocaleString("en")} frames`];
    if (bad) words.push(`${bad} with problems`);
    if (!found.done) words.push(`reading: ${known.length} of ${state.episodes.length}`);
    if (found.error) words.push(`reading ended: ${found.error}`);
    $("state").textContent = words.join(" · ");
    document.body.dataset.examined = String(found.done);
    if (!found.done) setTimeout(poll, POLL_MS);
  } catch (error) {
    $("state").textContent = "the server has ended, or cannot be reached";
    setTimeout(poll, 5 * POLL_MS);
  }
}

// A choice of the parts of the dataset, where it has some.
function showGroups() {
  const found = [...new Set(state.episodes.map((one) => one.group))].filter((group) => group);
  const select = $("group");
  if (select.options.length === found.length + 1 || !found.length) return;
  const chosen = select.value;
  select.replaceChildren(...["", ...found].map((group) => {
    const option = element("option", group || "all parts");
    option.value = group;
    return option;
  }));
  select.value = chosen;
  select.hidden = false;
}

function refilter() {
  const text = $("filter").value.toLowerCase();
  const outcome = $("outcome").value;
  const trouble = $("trouble").value;
  const group = $("group").value;
  const low = $("shortest").value === "" ? -Infinity : Number($("shortest").value);
  const high = $("longest").value === "" ? Infinity : Number($("longest").value);
  const bounded = low !== -Infinity || high !== Infinity;
  state.listed = state.episodes.filter((one) => {
    if (text && !one.name.toLowerCase().includes(text) && !one.task.toLowerCase().includes(text)) return false;
    if (outcome && outcome !== { true: "success", false: "failure", null: "unknown" }[String(one.success)]) return false;
    if (group && one.group !== group) return false;
    if (trouble && (trouble === "bad") !== one.problems.length > 0) return false;
    return !bounded || (one.length !== null && one.length >= low && one.length <= high);
  }).map((one) => one.number);
  const all = state.listed.length === state.episodes.length;
  $("count").textContent = all ? "" : `${state.listed.length} of ${state.episodes.length} episodes`;
  drawList();
}

function drawList() {
  const list = $("list");
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 5);
  const end = Math.min(state.listed.length, first + Math.ceil(list.clientHeight / ROW) + 10);
  $("rows").style.height = `${ROW * state.listed.length}px`;
  const rows = [];
  for (let place = first; place < end; place++) {
    const one = state.episodes[state.listed[place]];
    const row = element("div", undefined, one.number === state.episode ? "episode chosen" : "episode");
    row.style.top = `${ROW * place}px`;
    row.dataset.number = one.number;
    row.setAttribute("role", "option");
    row.setAttribute("aria-selected", String(one.number === state.episode));
    row.title = one.name;
    const top = element("div");
    top.append(element("span", one.name, "name"));
    if (one.problems.length) {
      top.append(element("span", one.problems.length === 1 ? "1 problem" : `${one.problems.length} problems`, "badge bad"));
    }
    const below = element("div", undefined, "below");
    below.append(element("span", one.length === null ? "…" : `${one.length} frames`));
    const known = [worth(one), one.task].filter((words) => words).join(" · ");
    below.append(element("span", known, "task"));
    const label = outcomeOf(one.success);
    below.append(element("span", label[0], `badge ${label[1]}`));
    row.append(top, below);
    row.addEventListener("click", () => open(one.number, 0));
    rows.push(row);
  }
  $("rows").replaceChildren(...rows);
}

// Advantage and label, where there are any.
function worth(one) {
  const words = [];
  if (one.advantage !== null) words.push(`advantage ${one.advantage > 0 ? "+" : ""}${written(one.advantage)}`);
  if (one.label) words.push(one.label);
  return words.join(" · ");
}

function outcomeOf(success) {
  if (success === true) return ["success", "good"];
  return success === false ? ["failure", "bad"] : ["", ""];
}

function step(by) {
  if (!state.listed.length) return;
  const place = state.listed.indexOf(state.episode);
  const next = place < 0 ? 0 : Math.min(Math.max(place + by, 0), state.listed.length - 1);
  open(state.listed[next], 0);
  const list = $("list");
  const top = ROW * next;
  if (top < list.scrollTop) list.scrollTop = top;
  if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
}

// ---- one episode

async function open(number, frame) {
  if (!state.episodes[number]) return;
  const turn = ++state.turn;
  Object.assign(state, { episode: number, content: null, length: 0, frame: 0, span: null, window: null, chunk: null });
  pause();
  tell(null);
  frames.clear();
  drawList();
  const one = state.episodes[number];
  $("name").textContent = one.name;
  const reward = one.reward === null ? "" : `reward ${written(one.reward)}`;
  $("task").textContent = [one.task, one.group, reward, worth(one)].filter((words) => words).join(" · ");
  $("notes").hidden = true;
  const label = outcomeOf(one.success);
  $("outcome-shown").textContent = label[0];
  $("outcome-shown").className = `badge ${label[1]}`;
  for (const id of ["cameras", "plots", "window", "problems"]) $(id).replaceChildren();
  $("window").hidden = true;
  $("problems").hidden = true;
  try {
    const content = await askJson(`episode/${number}`);
    const columns = content.columns.map((column, place) =>
      ask(`episode/${number}/column/${place}`).then((answer) => answer.arrayBuffer())
        .then((bytes) => ({ ...column, values: new Float32Array(bytes) })));
    content.columns = await Promise.all(columns);
    if (turn !== state.turn) return;
    state.content = content;
    $("notes").textContent = content.notes.join(" ");
    $("notes").hidden = !content.notes.length;
    const rows = content.columns.map((column) => column.rows);
    const action = content.columns.find((column) => column.name === "action");
    state.length = content.frames || one.length || (action ? action.rows : Math.max(1, ...rows));
    $("scrubber").max = String(state.length - 1);
    showProblems();
    makeCameras();
    makePlots();
    await seek(frame);
  } catch (error) {
    if (turn !== state.turn) return;
    tell(error);
    showProblems();
  }
}

function problemsNow() {
  return state.content ? state.content.problems : state.episodes[state.episode].problems;
}

function showProblems() {
  const rows = problemsNow().map(([text, row]) => {
    const line = element("li");
    if (row !== null) {
      const button = element("button", `frame ${row}`);
      button.type = "button";
      button.addEventListener("click", () => seek(row));
      line.append(button);
    }
    line.append(text);
    return line;
  });
  $("problems").replaceChildren(...rows);
  $("problems").hidden = !rows.length;
}

function nextProblem() {
  const at = problemsNow().map(([, row]) => row).filter((row) => row !== null).sort((a, b) => a - b);
  if (at.length) seek(at.find((row) => row > state.frame) ?? at[0]);
}

function makeCameras() {
  $("cameras").replaceChildren(...state.content.cameras.map((name) => {
    const figure = element("figure");
    figure.append(element("canvas"), element("figcaption", name));
    return figure;
  }));
}

async function seek(frame) {
  if (!state.content) return;
  state.frame = Math.min(Math.max(Math.round(frame) || 0, 0), state.length - 1);
  $("scrubber").value = String(state.frame);
  const { fps, times } = state.content;
  const at = times ? times[state.frame] : fps ? state.frame / fps : null;
  const seconds = at === null ? "" : ` · ${at.toFixed(2)} s`;
  $("frame").textContent = `frame ${state.frame} of ${state.length}${seconds}`;
  history.replaceState(null, "", `#episode=${state.episode}&frame=${state.frame}`);
  follow();
  drawPlots();
  await show();
}

let showing = null;
// Draws the images of the newest frame that was asked for, all cameras at once; those in between are passed over.
function show() {
  if (!showing) {
    showing = (async () => {
      let shown;
      do {
        shown = `${state.turn}:${state.frame}`;
        await drawFrame(state.turn, state.episode, state.frame);
      } while (shown !== `${state.turn}:${state.frame}`);
    })().finally(() => { showing = null; });
  }
  return showing;
}

async function drawFrame(turn, episode, frame) {
  const figures = [...$("cameras").children];
  const images = await Promise.allSettled(figures.map((_, camera) => bitmap(`episode/${episode}/image/${camera}/${frame}`)));
  if (turn !== state.turn) return;
  figures.forEach((figure, camera) => paint(figure, images[camera], state.content.cameras[camera]));
  if (!state.playing) {
    await drawWindow(turn, episode, frame);
    if (turn !== state.turn) return;
  }
  document.body.dataset.shown = `${episode}:${frame}`;
}

function paint(figure, image, name) {
  const [canvas, caption] = figure.children;
  const good = image.status === "fulfilled";
  caption.textContent = good ? name : `${name}: ${image.reason.message}`;
  caption.className = good ? "" : "failed";
  if (!good) {
    canvas.width = canvas.width; // clears it: an older image would look like this frame's
    return;
  }
  if (canvas.width !== image.value.width || canvas.height !== image.value.height) {
    canvas.width = image.value.width;
    canvas.height = image.value.height;
  }
  canvas.getContext("2d").drawImage(image.value, 0, 0);
}

// ---- playing

let began = null;
function play() {
  if (!state.content) return;
  if (state.frame >= state.length - 1) state.frame = 0;
  state.playing = true;
  $("play").textContent = "pause";
  began = { time: performance.now(), frame: state.frame, turn: state.turn };
  requestAnimationFrame(tick);
}

function pause() {
  const was = state.playing;
  state.playing = false;
  $("play").textContent = "play";
  if (was && state.content) show();
}

async function tick() {
  if (!state.playing || began.turn !== state.turn) return;
  const rate = state.content.fps || 30;
  const due = began.frame + Math.floor((performance.now() - began.time) / 1000 * rate);
  if (due >= state.length - 1) {
    await seek(state.length - 1);
    pause();
    return;
  }
  if (due !== state.frame) await seek(due);
  requestAnimationFrame(tick);
}

// ---- plots

function makePlots() {
  $("plots").replaceChildren(...state.content.columns.map((column) => {
    const plot = element("div", undefined, column.width === 1 ? "plot flat" : "plot");
    const top = element("div", undefined, "top");
    const legend = element("div", undefined, "legend");
    top.append(element("h3", column.name), legend);
    const canvas = element("canvas");
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      seekTo(event, canvas);
    });
    canvas.addEventListener("pointermove", (event) => event.buttons & 1 && seekTo(event, canvas));
    plot.append(top, canvas);
    return plot;
  }));
}

function seekTo(event, canvas) {
  const [first, end] = spanNow();
  const box = canvas.getBoundingClientRect();
  seek(first + (event.clientX - box.left) / box.width * Math.max(end - first - 1, 1));
}

const spanNow = () => state.span || [0, state.length];

function zoom(by) {
  const [first, end] = spanNow();
  const wide = Math.min(Math.max(Math.round((end - first) * by), 10), state.length);
  state.span = wide >= state.length ? null : [0, wide];
  follow(true);
  drawPlots();
}

// Moves the plots' span so that the cursor stays in it.
function follow(middle) {
  if (!state.span) return;
  const wide = state.span[1] - state.span[0];
  if (!middle && state.frame >= state.span[0] && state.frame < state.span[1]) return;
  const first = Math.min(Math.max(state.frame - Math.floor(wide / 2), 0), state.length - wide);
  state.span = [first, first + wide];
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function range(column, first, end) {
  let low = Infinity;
  let high = -Infinity;
  const values = column.values;
  for (let i = first * column.width; i < Math.min(end, column.rows) * column.width; i++) {
    const value = values[i];
    if (Number.isFinite(value)) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (low > high) return [-1, 1];
  const margin = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [low - margin, high + margin];
}

// The range, and what of a policy's chunk lies outside of it.
function widened([low, top], chunk) {
  for (const value of chunk.flat()) {
    if (value < low) low = value;
    if (value > top) top = value;
  }
  return [low, top];
}

function drawPlots() {
  if (!state.content) return;
  const colors = Array.from({ length: 8 }, (_, k) => color(`--c${k}`));
  state.content.columns.forEach((column, place) => drawPlot($("plots").children[place], column, colors));
}

function drawPlot(plot, column, colors) {
  const canvas = plot.querySelector("canvas");
  const scale = window.devicePixelRatio || 1;
  const wide = canvas.clientWidth;
  const high = canvas.clientHeight;
  if (canvas.width !== Math.round(wide * scale) || canvas.height !== Math.round(high * scale)) {
    canvas.width = Math.round(wide * scale);
    canvas.height = Math.round(high * scale);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, wide, high);
  const [first, end] = spanNow();
  const drawn = state.chunk && !state.chunk.in_plane && state.chunk.over === column.name ? state.chunk.actions : [];
  if (!column.range || column.rangeOf !== `${first}:${end}`) column.range = range(column, first, end);
  column.rangeOf = `${first}:${end}`;
  const [low, top] = widened(column.range, drawn);
  const x = (frame) => (frame - first) / Math.max(end - first - 1, 1) * (wide - 1) + 0.5;
  const y = (value) => high - 3 - (value - low) / (top - low) * (high - 6);
  if (state.window && !state.window.in_plane && column.name === state.window.over) shadeWindow(pen, x, high);
  if (low < 0 && top > 0) {
    pen.strokeStyle = color("--line");
    pen.beginPath();
    pen.moveTo(0, y(0));
    pen.lineTo(wide, y(0));
    pen.stroke();
  }
  pen.lineWidth = 1.2;
  for (let k = 0; k < column.width; k++) drawLine(pen, column, k, colors[k % 8], { first, end, x, y, wide });
  if (drawn.length) drawChunk(pen, drawn, colors, x, y);
  pen.strokeStyle = color("--bad");
  for (const [, row] of problemsNow()) {
    if (row === null || row < first || row >= end) continue;
    pen.beginPath();
    pen.moveTo(x(row), high);
    pen.lineTo(x(row), high - 8);
    pen.lineWidth = 3;
    pen.stroke();
  }
  pen.lineWidth = 1;
  pen.strokeStyle = color("--cursor");
  pen.beginPath();
  pen.moveTo(x(state.frame), 0);
  pen.lineTo(x(state.frame), high);
  pen.stroke();
  drawLegend(plot.querySelector(".legend"), column);
}

function drawLine(pen, column, k, ink, { first, end, x, y, wide }) {
  pen.strokeStyle = ink;
  pen.beginPath();
  const last = Math.min(end, column.rows);
  const each = (last - first) / (2 * wide);
  let down = false;
  const point = (frame, value) => {
    if (!Number.isFinite(value)) {
      down = false;
      return;
    }
    if (down) pen.lineTo(x(frame), y(value));
    else pen.moveTo(x(frame), y(value));
    down = true;
  };
  if (each <= 1) {
    for (let frame = first; frame < last; frame++) point(frame, column.values[frame * column.width + k]);
  } else {
    // More frames than pixels: the lowest and the highest of each pixel, so that no spike is lost.
    for (let from = first; from < last; from += 2 * each) {
      const to = Math.min(Math.floor(from + 2 * each), last);
      let low = NaN;
      let high = NaN;
      for (let frame = Math.floor(from); frame < to; frame++) {
        const value = column.values[frame * column.width + k];
        if (!(value >= low)) low = Number.isFinite(value) ? value : low;
        if (!(value <= high)) high = Number.isFinite(value) ? value : high;
      }
      point(from, low);
      point(from, high);
    }
  }
  pen.stroke();
  if (last - first === 1) pen.fillRect(x(first) - 1, y(column.values[first * column.width + k]) - 1, 3, 3);
}

function drawLegend(legend, column) {
  const shown = Math.min(column.width, 24);
  const row = Math.min(state.frame, column.rows - 1);
  const entries = [];
  for (let k = 0; k < shown && column.rows; k++) {
    const entry = element("span");
    entry.append(element("i", undefined, `k${k % 8}`));
    entry.append(`${column.labels[k] ?? (column.width > 1 ? k : "")} ${written(column.values[row * column.width + k])}`);
    entries.push(entry);
  }
  if (column.width > shown) entries.push(element("span", `and ${column.width - shown} more`));
  legend.replaceChildren(...entries);
}

function written(value) {
  if (typeof value === "string") return value; // NaN, inf
  if (typeof value === "boolean") return value ? "1" : "0";
  if (!Number.isFinite(value)) return String(value);
  if (value !== 0 && (Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3)) return value.toExponential(2);
  return Number.isInteger(value) ? String(value) : value.toFixed(3);
}

// ---- keys and what else moves

const KEYS = {
  " ": () => (state.playing ? pause() : play()),
  ArrowLeft: (event) => { pause(); seek(state.frame - (event.shiftKey ? 10 : 1)); },
  ArrowRight: (event) => { pause(); seek(state.frame + (event.shiftKey ? 10 : 1)); },
  Home: () => { pause(); seek(0); },
  End: () => { pause(); seek(state.length - 1); },
  n: () => step(1),
  p: () => step(-1),
  g: nextProblem,
  "+": () => zoom(0.5),
  "-": () => zoom(2),
  "/": () => $("filter").focus(),
  "?": () => $("keys").showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("keys").open) return;
  const writing = event.target.matches("select, input:not([type=range])");
  if (writing) {
    if (event.key === "Escape" || (event.key === "Enter" && event.target.id === "filter")) event.target.blur();
    return;
  }
  const act = KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act(event);
});

for (const id of ["filter", "group", "outcome", "trouble", "shortest", "longest"]) $(id).addEventListener("input", refilter);
$("list").addEventListener("scroll", drawList);
$("scrubber").addEventListener("input", () => { pause(); seek(Number($("scrubber").value)); });
$("play").addEventListener("click", () => { KEYS[" "](); $("play").blur(); });
$("keys-button").addEventListener("click", () => $("keys").showModal());
window.addEventListener("resize", () => { drawList(); drawPlots(); });
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawPlots);
window.addEventListener("hashchange", fromAddress);

function fromAddress() {
  const found = /^#episode=(\d+)&frame=(\d+)$/.exec(location.hash);
  const [number, frame] = found ? [Number(found[1]), Number(found[2])] : [0, 0];
  if (number !== state.episode) open(number, frame);
  else if (frame !== state.frame) seek(frame);
}

(async () => {
  try {
    state.dataset = await askJson("dataset");
    $("title").textContent = state.dataset.title;
    $("title").title = state.dataset.title;
    $("kind").textContent = state.dataset.kind;
    document.title = `${state.dataset.title} | chunkwise view`;
    await poll();
    fromAddress();
  } catch (error) {
    tell(error);
  }
})();
