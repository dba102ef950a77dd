// The chunk at the cursor: what training draws, and what a policy would do. view.js has what it stands on.
"use strict";

async function drawWindow(turn, episode, frame) {
  const { training, policy } = state.dataset;
  if (!training && !policy) return;
  const [drawn, predicted] = await Promise.allSettled([
    training ? askJson(`episode/${episode}/window/${frame}`) : null,
    policy ? askJson(`episode/${episode}/chunk/${frame}`) : null,
  ]);
  if (turn !== state.turn || frame !== state.frame) return;
  state.window = drawn.value ? { ...drawn.value, frame } : null;
  state.chunk = predicted.value ? { ...predicted.value, frame } : null;
  const panel = $("window");
  panel.hidden = false;
  const parts = [];
  if (training) {
    parts.push(element("h3", `What training with ${training} draws at frame ${frame}`));
    if (drawn.reason) parts.push(element("p", drawn.reason.message, "quiet"));
  }
  if (state.window) {
    const images = element("div", undefined, "images");
    const found = await Promise.allSettled(state.window.images.map((_, k) => bitmap(`episode/${episode}/window/${frame}/${k}`)));
    if (turn !== state.turn || frame !== state.frame) return;
    state.window.images.forEach(([name, high, wide], k) => {
      const figure = element("figure");
      figure.append(element("canvas"), element("figcaption"));
      paint(figure, found[k], `${name}, ${wide} × ${high}`);
      images.append(figure);
    });
    for (const note of state.window.notes) parts.push(element("p", note, "quiet"));
    parts.push(images, ...tables(state.window));
  }
  if (policy) parts.push(element("h3", `What ${policy} would do at frame ${frame}`));
  if (predicted.reason) parts.push(element("p", predicted.reason.message, "quiet"));
  if (state.chunk) {
    if (!state.chunk.in_plane) parts.push(element("p", `Dashed in the plot of ${state.chunk.over}.`, "quiet"));
    for (const note of state.chunk.notes) parts.push(element("p", note, "quiet"));
  }
  const plane = planeOf(state.window, state.chunk);
  if (plane) parts.splice(1, 0, plane);
  panel.replaceChildren(...parts);
  if (plane) drawPlane(plane.firstChild, state.window, state.chunk);
  drawPlots();
}

// A figure for places seen from above, where there are any.
function planeOf(drawn, chunk) {
  if (!(drawn && drawn.in_plane) && !(chunk && chunk.in_plane)) return null;
  const figure = element("figure", undefined, "plane");
  const words = chunk && chunk.in_plane ? "seen from above: driven (line), the policy's (dashed)" : "driven, seen from above";
  figure.append(element("canvas"), element("figcaption", words));
  return figure;
}

// x ahead is up, y to the left is left; both axes have one scale, and the car is at the small square.
function drawPlane(canvas, drawn, chunk) {
  const driven = chunk && chunk.in_plane ? chunk.recorded : drawn.recorded.filter((_, i) => drawn.valid[i]);
  const wanted = chunk && chunk.in_plane ? chunk.actions : [];
  const scale = window.devicePixelRatio || 1;
  const side = canvas.clientWidth;
  canvas.width = canvas.height = Math.round(side * scale);
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  const all = [[0, 0], ...driven, ...wanted];
  const [near, far] = [Math.min(...all.map((at) => at[0])), Math.max(...all.map((at) => at[0]))];
  const [right, left] = [Math.min(...all.map((at) => at[1])), Math.max(...all.map((at) => at[1]))];
  const metre = (side - 24) / Math.max(far - near, left - right, 1);
  const place = ([x, y]) => [side / 2 - (y - (left + right) / 2) * metre, side / 2 - (x - (near + far) / 2) * metre];
  const path = (points, ink, dashes) => {
    pen.setLineDash(dashes);
    pen.strokeStyle = pen.fillStyle = color(ink);
    pen.lineWidth = 2;
    pen.beginPath();
    for (const at of [[0, 0], ...points]) pen.lineTo(...place(at));
    pen.stroke();
    for (const at of points) pen.fillRect(place(at)[0] - 2, place(at)[1] - 2, 4, 4);
  };
  path(driven, "--quiet", []);
  if (wanted.length) path(wanted, "--c1", [4, 3]);
  const [x, y] = place([0, 0]);
  pen.fillStyle = color("--ink");
  pen.fillRect(x - 4, y - 4, 8, 8);
  const unit = [100, 50, 20, 10, 5, 2, 1, 0.5, 0.2, 0.1].find((length) => length * metre < side / 3) ?? 0.1;
  pen.fillRect(8, side - 10, unit * metre, 2);
  pen.fillText(`${unit} m`, 8, side - 14);
}

// One table with a column a step for entries of t steps, one for the rest.
function tables({ arrays, valid, per_step: perStep }) {
  const steps = valid.length;
  const chunk = element("table");
  const others = element("table");
  const head = element("tr");
  head.append(element("th", "step"));
  for (let i = 0; i < steps; i++) head.append(element("th", String(i)));
  if (steps) chunk.append(head);
  const line = (table, name, values, padded) => {
    const row = element("tr");
    row.dataset.name = name;
    row.append(element("th", name));
    values.forEach((value, i) => row.append(element("td", written(value), padded && !valid[i] ? "padded" : "")));
    table.append(row);
  };
  for (const [name, value] of Object.entries(arrays)) {
    if (!Array.isArray(value)) line(others, name, [value]);
    else if (perStep.includes(name) && Array.isArray(value[0])) {
      value[0].forEach((_, k) => line(chunk, `${name} ${k}`, value.map((one) => one[k]), true));
    } else if (perStep.includes(name)) line(chunk, name, value, true);
    else line(others, name, value.flat(Infinity));
  }
  return [chunk, others].map((table) => {
    const scroll = element("div", undefined, "scroll");
    scroll.append(table);
    return scroll;
  });
}

function shadeWindow(pen, x, high) {
  const { valid, frame, recorded } = state.window;
  const half = (x(frame + 1) - x(frame)) / 2;
  recorded.forEach((_, i) => {
    pen.fillStyle = color(valid[i] ? "--window" : "--padding");
    pen.fillRect(x(frame + i) - half, 0, 2 * half, high);
  });
}

function drawChunk(pen, actions, colors, x, y) {
  pen.setLineDash([4, 3]);
  pen.lineWidth = 2;
  for (let k = 0; k < actions[0].length; k++) {
    pen.strokeStyle = colors[k % 8];
    pen.beginPath();
    actions.forEach((action, i) => pen.lineTo(x(state.chunk.frame + i), y(action[k])));
    pen.stroke();
  }
  pen.setLineDash([]);
}
