// The map of workers and steps: the lighter a cell, the larger the worker's share of the update, and the higher the rank
// of its score. One more row, the last, is the share of the server's own gradient.

const STOPS = [[0, 8, 22, 58], [55, 28, 52, 104], [110, 62, 88, 136], [150, 190, 174, 128], [200, 232, 212, 142], [249, 253, 243, 201]];
const ERROR_COLOUR = [122, 20, 62];
const NOT_ASKED_COLOUR = [146, 150, 156];
const MINUS = "\u2212";
const SERVER = -1;  // in place of a worker's number
const MARKS = 44;  // pixels for the marks of the workers, left of their names

const AGE = 34;  // pixels for the mean staleness of the workers, right of the map

const LABEL = 11.5;  // pixels, the size of the names

const isFaulty = (row) => row.faulty > 0.5;  // at most steps

function palette(value) {
  const k = Math.max(1, STOPS.findIndex(([at]) => at >= value));
  const [a, ...from] = STOPS[k - 1], [b, ...to] = STOPS[k];
  return from.map((low, i) => Math.round(low + ((to[i] - low) * (value - a)) / (b - a)));
}

function lookup() {
  const table = new Uint8Array(256 * 3);
  const plate = css("--plate").match(/[\d.]+/g).slice(0, 3).map(Number);
  for (let code = 0; code < 250; code++) table.set(palette(code), 3 * code);
  table.set(ERROR_COLOUR, 3 * CODE_ERROR);
  table.set(NOT_ASKED_COLOUR, 3 * CODE_NOT_ASKED);
  table.set(plate, 3 * CODE_NONE);
  return table;
}

class WorkerMap {
  constructor(run, group, { onPick }) {
    this.run = run;
    this.group = group;
    this.order = Array.from({ length: run.workers }, (_, worker) => worker);
    this.at = { step: 0, row: 0 };
    this.picked = null;
    this.room = this.widest();  // pixels for the names
    this.chart = new Chart("map", group, () => this.data(), {
      title: "Map of workers and steps. The table of the workers below has the numbers.",
      height: () => this.height(),
      padding: [8, run.staleness ? 14 + AGE : 14, 0, this.room + MARKS],
      scales: { y: { dir: -1, range: () => [-0.5, this.order.length - 0.5] } },
      axes: [{ grid: { show: false } }, { show: false }],
      series: [{}, { show: false, points: { show: false } }],
      cursor: { y: true, points: { show: false } },
      hooks: { draw: [(plot) => this.draw(plot)] },
    });
    this.cell = make("div", { className: "cell", hidden: true });
    this.chart.plot.over.append(this.cell);
    this.chart.plot.over.addEventListener("click", (event) => {
      if (event.detail < 2 && !this.dragged()) onPick(this.order[this.at.row]);  // a double click shows the whole run
    });
    this.chart.plot.over.addEventListener("mousedown", (event) => { this.downAt = event.clientX; });
    this.chart.plot.over.addEventListener("mouseup", (event) => { this.upAt = event.clientX; });
    this.chart.pointAt = (step) => this.pointAt(step);
    group.listeners.push((step, from) => { if (from === this.chart) this.hovered(step); });
  }

  widest() {
    const ctx = new OffscreenCanvas(1, 1).getContext("2d");
    ctx.font = `700 ${LABEL}px system-ui, sans-serif`;
    return Math.ceil(Math.max(22, ...this.run.ledger.rows.map((row) => ctx.measureText(shortened(row.name)).width)));
  }

  dragged() {
    return Math.abs((this.upAt ?? 0) - (this.downAt ?? 0)) > 4;
  }

  data() {
    return [Array.from({ length: this.run.columns }, (_, c) => this.run.middle(c)), new Array(this.run.columns).fill(null)];
  }

  height() {
    const count = Math.max(1, this.order.length);
    return Math.round(count * Math.max(2.4, Math.min(19, 480 / count))) + 54 + (count === 1 ? 12 : 0);
  }

  // The rows, top to bottom.
  arrange(order) {
    this.order = order;
    this.chart.holder.dataset.rows = order.length;
    this.at.row = Math.min(this.at.row, Math.max(0, order.length - 1));
    this.group.quietly((chart) => {
      if (chart !== this.chart) return;
      chart.fit();
      chart.refresh();
    });
  }

  hovered(step) {
    const { top } = this.chart.plot.cursor;
    if (step === null || !this.order.length) return this.quiet();
    this.at.step = this.inside(step);
    this.at.row = Math.max(0, Math.min(this.order.length - 1, Math.round(this.chart.plot.posToVal(top, "y"))));
    this.tell(false);
  }

  // The cursor is on another chart: the map follows, in its current row.
  pointAt(step) {
    const { plot } = this.chart;
    const left = step === null ? -10 : plot.valToPos(step, "x");
    const isInside = step !== null && left >= 0 && left <= plot.over.clientWidth;
    plot.setCursor(isInside ? { left, top: plot.valToPos(this.at.row, "y") } : { left: -10, top: -10 }, false);
    if (isInside && this.inside(step) === this.at.step) this.mark();
    else this.cell.hidden = true;
  }

  inside(step) {
    return Math.max(0, Math.min(this.run.steps - 1, Math.round(step)));
  }

  move(steps, rows) {
    this.at.step = this.inside(this.run.column(this.at.step) * this.run.bin + steps * this.run.bin);
    this.at.row = Math.max(0, Math.min(this.order.length - 1, this.at.row + rows));
    this.group.reveal(this.at.step);
    this.group.point(this.at.step);
    this.tell(true);
  }

  tell(isSpoken) {
    const text = describe(this.run, this.order[this.at.row], this.at.step);
    byId("readout").textContent = text;
    if (isSpoken) byId("spoken").textContent = text;
    this.mark();
  }

  quiet() {
    this.cell.hidden = true;
  }

  // Frames the cell that is described.
  mark() {
    const { plot } = this.chart;
    const { run, at } = this;
    const column = run.column(at.step);
    const left = plot.valToPos(column * run.bin - 0.5, "x"), right = plot.valToPos((column + 1) * run.bin - 0.5, "x");
    const top = plot.valToPos(at.row - 0.5, "y"), bottom = plot.valToPos(at.row + 0.5, "y");
    const room = Math.max(0, 7 - (right - left)) / 2, above = Math.max(0, 7 - (bottom - top)) / 2;
    Object.assign(this.cell.style, {
      left: `${left - room}px`, top: `${top - above}px`, width: `${right - left + 2 * room}px`, height: `${bottom - top + 2 * above}px`,
    });
    this.cell.hidden = left < -1 || right > plot.over.clientWidth + 1;
  }

  draw(plot) {
    const { ctx, bbox } = plot;
    const width = Math.round(bbox.width), height = Math.round(bbox.height);
    if (width < 1 || height < 1 || !this.order.length || !this.run.columns) return;
    this.table = lookup();
    const image = this.painted(width, height, plot);
    const sheet = new OffscreenCanvas(width, height);
    sheet.getContext("2d").putImageData(image, 0, 0);
    ctx.save();
    ctx.drawImage(sheet, bbox.left, bbox.top);
    this.drawMarks(plot);
    this.drawLabels(plot);
    ctx.restore();
  }

  // Each pixel is the mean colour of the columns that fall into it.
  painted(width, height, plot) {
    const { run, order, table } = this;
    const { code, under } = run;
    const image = new ImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const rows = order.length;
    const edges = Array.from({ length: rows + 1 }, (_, r) => Math.round((r * height) / rows));
    const gap = height / rows >= 6 * uPlot.pxRatio ? 1 : 0;
    const { min, max } = plot.scales.x;
    const column = (x) => (min + (x * (max - min)) / width + 0.5) / run.bin;
    const wide = width / ((max - min) / run.bin) >= 6 * uPlot.pxRatio;
    const sums = new Float32Array(3 * rows), unasked = new Uint32Array(rows);
    const ground = 0xff000000 | (table[3 * CODE_NONE + 2] << 16) | (table[3 * CODE_NONE + 1] << 8) | table[3 * CODE_NONE];
    const dark = 0xff000000 | (96 << 16) | (90 << 8) | 86;
    let before = -1;
    for (let x = 0; x < width; x++) {
      const first = Math.max(0, Math.floor(column(x)));
      const last = Math.min(run.columns, Math.max(first + 1, Math.floor(column(x + 1))));
      const isEdge = wide && before >= 0 && before !== first;
      before = first;
      sums.fill(0);
      unasked.fill(0);
      for (let c = first; c < last; c++) {
        for (let r = 0, base = c * run.workers; r < rows; r++) {
          const isServer = order[r] === SERVER;
          const value = isServer ? run.ownCode[c] : code[base + order[r]], below = isServer ? NO_SHADE : under[base + order[r]], i = 3 * value;
          const isDimmed = value === CODE_NOT_ASKED && below !== NO_SHADE;
          const j = isDimmed ? 3 * below : i;  // a worker that was not asked keeps its last shade, dimmed
          if (run.staleness) {  // most workers do not arrive at most updates: their last shade stays as it is
            sums[3 * r] += table[j];
            sums[3 * r + 1] += table[j + 1];
            sums[3 * r + 2] += table[j + 2];
            continue;
          }
          sums[3 * r] += (table[i] + 2 * table[j]) / 3;
          sums[3 * r + 1] += (table[i + 1] + 2 * table[j + 1]) / 3;
          sums[3 * r + 2] += (table[i + 2] + 2 * table[j + 2]) / 3;
          if (value === CODE_NOT_ASKED) unasked[r]++;
        }
      }
      const count = last - first;
      for (let r = 0; r < rows; r++) {
        const colour = count < 1 || isEdge ? ground
          : (0xff000000 | ((sums[3 * r + 2] / count) << 16) | ((sums[3 * r + 1] / count) << 8) | (sums[3 * r] / count)) >>> 0;
        const isHatched = count > 0 && !isEdge && 2 * unasked[r] > count;
        for (let y = edges[r]; y < edges[r + 1] - gap; y++) {
          pixels[y * width + x] = isHatched && (x + y) % 7 < 2 ? dark : colour;
        }
        if (gap) pixels[(edges[r + 1] - 1) * width + x] = ground;
      }
    }
    return image;
  }

  // If cells are large enough: a cross for dropped, a minus sign for subtracted, ! for no usable reply.
  drawMarks(plot) {
    const { ctx, bbox } = plot;
    const { run, order } = this;
    const ratio = uPlot.pxRatio;
    const { min, max } = plot.scales.x;
    const wide = (bbox.width / (max - min)) * run.bin, tall = bbox.height / order.length;
    if (wide < 7 * ratio || tall < 7 * ratio) return;
    const arm = Math.min(2.6 * ratio, wide / 4, tall / 4);
    ctx.lineWidth = 1.1 * ratio;
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    ctx.font = `700 ${Math.min(13, tall / ratio - 1) * ratio}px system-ui, sans-serif`;
    for (let c = run.column(Math.max(0, min)); c <= run.column(max); c++) {
      const x = plot.valToPos(c * run.bin + (run.bin - 1) / 2, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      for (let r = 0; r < order.length; r++) {
        if (order[r] === SERVER) continue;
        const value = run.code[c * run.workers + order[r]];
        const y = bbox.top + (r + 0.5) * tall;
        if (value <= 110 && run.cells.state[c * run.workers + order[r]] & DROPPED) cross(ctx, x, y, arm);
        else if (value === CODE_ERROR || run.cells.weight[c * run.workers + order[r]] < 0) {
          ctx.fillStyle = "#ffffff";
          ctx.fillText(value === CODE_ERROR ? "!" : MINUS, x, y);
        }
      }
    }
  }

  // Beside each row: its name, a triangle for a suspect, F for an injected fault.
  drawLabels(plot) {
    const { ctx, bbox } = plot;
    const { order, run } = this;
    const ratio = uPlot.pxRatio;
    const tall = bbox.height / order.length;
    const rows = order.map((worker) => (worker === SERVER ? { worker: "server", name: "server" } : run.ledger.rows[worker]));
    const labelled = this.labelled(rows, tall / ratio);
    ctx.textBaseline = "middle";
    ctx.textAlign = "right";
    rows.forEach((row, r) => {
      const y = bbox.top + (r + 0.5) * tall;
      const isSuspect = row.verdict === "suspect", isLabelled = labelled.has(r);
      if (order[r] === SERVER && r > 0) {
        ctx.fillStyle = css("--plate");
        ctx.fillRect(bbox.left, Math.round(y - tall / 2 - ratio), bbox.width, Math.round(2 * ratio));
      }
      if (isLabelled) {
        ctx.fillStyle = css(isSuspect || row.worker === this.picked ? "--ink" : "--soft");
        ctx.font = `${isSuspect || row.worker === this.picked ? "700 " : ""}${LABEL * ratio}px system-ui, sans-serif`;
        ctx.fillText(shortened(row.name), bbox.left - 6 * ratio, y);
        const age = run.staleness?.[order[r]] ?? null;
        if (age !== null) ctx.fillText(figure(age, 2), bbox.left + bbox.width + AGE * ratio, y);
      }
      if (isFaulty(row)) this.drawKnown(ctx, bbox.left - (this.room + 26) * ratio, y, tall, isLabelled && tall >= 10 * ratio);
      if (isSuspect) triangle(ctx, bbox.left - (this.room + 12) * ratio, y, Math.max(2.5 * ratio, Math.min(4.5 * ratio, tall / 2)), css("--warn"));
      if (row.worker === this.picked) {
        ctx.strokeStyle = css("--ink");
        ctx.lineWidth = 1.5 * ratio;
        ctx.strokeRect(bbox.left - 1, y - tall / 2 - 1, bbox.width + 2, Math.max(3 * ratio, tall) + 1);
      }
    });
  }

  drawKnown(ctx, x, y, tall, isText) {
    const ratio = uPlot.pxRatio;
    ctx.fillStyle = css("--ink");
    if (isText) {
      ctx.font = `700 ${11 * ratio}px system-ui, sans-serif`;
      ctx.fillText("F", x, y);
    } else ctx.fillRect(x - 6 * ratio, y - tall / 2, 3 * ratio, Math.max(1, tall));
  }

  // The rows with room for their name: all, or the suspects first and then some at even distances.
  labelled(rows, tall) {
    const found = new Set();
    const apart = Math.ceil(12 / tall);
    const free = (r) => { for (let k = r - apart + 1; k < r + apart; k++) if (found.has(k)) return false; return true; };
    const step = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((n) => n >= apart) ?? 1000;
    rows.forEach((row, r) => { if (row.worker === "server") found.add(r); });
    rows.forEach((row, r) => { if ((row.verdict === "suspect" || row.worker === this.picked) && free(r)) found.add(r); });
    rows.forEach((_, r) => { if (r % step === 0 && free(r)) found.add(r); });
    return found;
  }
}

function cross(ctx, x, y, arm) {
  ctx.strokeStyle = "rgba(255, 255, 255, 0.62)";
  ctx.beginPath();
  ctx.moveTo(x - arm, y - arm);
  ctx.lineTo(x + arm, y + arm);
  ctx.moveTo(x + arm, y - arm);
  ctx.lineTo(x - arm, y + arm);
  ctx.stroke();
}

function triangle(ctx, x, y, arm, colour) {
  ctx.fillStyle = colour;
  ctx.beginPath();
  ctx.moveTo(x - arm, y - arm);
  ctx.lineTo(x + arm, y);
  ctx.lineTo(x - arm, y + arm);
  ctx.fill();
}

// A worker, or the server, at a step, in words.
function describe(run, worker, step) {
  const column = run.column(step);
  const first = column * run.bin, last = Math.min(run.steps, first + run.bin) - 1;
  const where = run.bin === 1 ? `step ${step}` : `steps ${first} to ${last}`;
  const own = run.lines.own[column];
  if (worker === SERVER) return `Server, ${where}: ${ownText(run, own, step)}.`;
  const i = column * run.workers + worker;
  const state = run.cells.state[i];
  const score = run.cells.score[i], rank = run.cells.rank[i];
  const parts = [run.bin === 1 ? stateAt(run, worker, step, state) : stateOver(run, i, state)];
  const isScored = !Number.isNaN(score);
  if (state & KEPT && run.lines.largest[column] > 0) parts.push(weightText(run, i, column));
  if (run.lines.ranked[column] && !isScored && !(state & (ERROR | NOT_ASKED))) parts.push("no score");
  if (isScored) parts.push(`${run.bin === 1 ? "" : "mean "}score ${figure(score)}`);
  if (rank) parts.push(`${run.bin === 1 ? "" : "mean "}rank ${rank} of ${run.lines.ranked[column]}`);
  const age = run.staleness ? run.cells.staleness[i] : 0;
  if (age) parts.push(`${run.bin === 1 ? "" : "mean "}staleness ${age - 1}`);
  if (state & LATE) parts.push("a late reply to an earlier step arrived");
  const known = run.ledger.rows[worker].faulty === null ? "" : state & FAULTY ? " Made faulty at this step." : " Not made faulty at this step.";
  const server = run.hasServer && !Number.isNaN(own) ? ` The server's own share is ${figure(own, 2)}.` : "";
  return `Worker ${run.nameOf(worker)}, ${where}: ${parts.join(", ")}.${known}${server}`;
}

// As exact as one byte is.
function weightText(run, i, column) {
  const parts = run.cells.weight[i], largest = run.lines.largest[column];
  const mean = run.bin === 1 ? "weight" : "mean weight";
  if (!parts) return `${mean} below ${figure(largest / WHOLE / 2, 2)}`;
  return `${mean} ${figure((parts / WHOLE) * largest, Math.abs(parts) < 20 ? 1 : 2)}${parts < 0 ? " (subtracted)" : ""}`;
}

function ownText(run, own, step) {
  if (Number.isNaN(own)) return noUpdate(run, step);
  return `its own gradient has ${run.bin === 1 ? "a share" : "a mean share"} of ${figure(own, 2)} in the update`;
}

function noUpdate(run, step) {
  const i = run.skipped.step.indexOf(step);
  return i < 0 ? "no update" : `no update at this step (${run.texts[run.skipped.text[i]]})`;
}

function stateAt(run, worker, step, state) {
  if (state & ERROR) return `no usable reply (${run.errorAt(worker, step)})`;
  if (state & NOT_ASKED) return run.staleness ? "did not arrive" : "not asked";
  if (state & KEPT) return "kept";
  if (state & DROPPED) return "dropped";
  return run.skipped.step.includes(step) ? noUpdate(run, step) : "no worker was kept at this step";
}

function stateOver(run, i, state) {
  const parts = [];
  if (state & (KEPT | DROPPED)) parts.push(`dropped at ${percent(run.cells.share[i] / 255, 0)} of steps`);
  if (state & ERROR) parts.push("some replies unusable");
  if (state & NOT_ASKED) parts.push(run.staleness ? "did not arrive at some steps" : "not asked at some steps");
  return parts.join(", ") || "no worker was kept";
}

function mapLegend(run) {
  const chip = (codes, text, mark = "") => {
    const box = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const width = Math.max(16, 12 * codes.length);
    box.setAttribute("width", width);
    box.setAttribute("height", 16);
    box.setAttribute("aria-hidden", "true");
    codes.forEach((colour, k) => {
      const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      for (const [name, value] of Object.entries({ x: (k * width) / codes.length, width: width / codes.length, height: 16 })) rect.setAttribute(name, value);
      rect.style.fill = `rgb(${colour.join(",")})`;
      box.append(rect);
    });
    if (mark) {
      const sign = document.createElementNS("http://www.w3.org/2000/svg", "text");
      for (const [name, value] of Object.entries({ x: width / 2, y: 12.5, "text-anchor": "middle", "font-size": 12, "font-weight": 700 })) sign.setAttribute(name, value);
      sign.style.fill = "#ffffff";
      sign.textContent = mark;
      box.append(sign);
    }
    return make("span", {}, box, text);
  };
  const sign = (mark, text) => make("span", {}, make("strong", { "aria-hidden": "true" }, mark), text);
  const seen = run.cells.state.reduce((all, state) => all | state, 0);
  const kept = run.ranks ? [150, 200, 249] : [199], dropped = run.ranks ? [0, 55, 110] : [55];
  const parts = [chip(kept.map(palette), run.ranks ? "kept; lighter: higher score" : "kept")];
  if (run.isWeighted) parts.push(chip([1, 0.5, 0.1].map((carried) => palette(shade(0.7, carried))), "kept; darker: a smaller share of the update, compared with the largest at that step"));
  if (seen & DROPPED) parts.push(chip(dropped.map(palette), run.ranks ? "dropped; darker: lower score" : "dropped", "\u00d7"));
  if (run.cells.weight.some((weight) => weight < 0)) parts.push(chip([55].map(palette), "kept with a negative weight: subtracted", MINUS));
  if (seen & ERROR) parts.push(chip([ERROR_COLOUR], "no usable reply", "!"));
  if (run.staleness) parts.push(sign("7", "right of the map: the mean staleness of a worker's arrivals, in updates; between arrivals, a row keeps its shade"));
  else if (seen & NOT_ASKED) parts.push(chip([NOT_ASKED_COLOUR], "not asked, hatched", "/"));
  if (run.hasServer) parts.push(chip([0, 125, 249].map(palette), "server: none, half or all of the update is its own gradient"));
  if (run.suspects.length) parts.push(sign("\u25b6", "suspect"));
  if (run.ledger.rows.some(isFaulty)) parts.push(sign("F", `made faulty in this simulation${run.workers > 40 ? " (a bar if rows are narrow)" : ""}`));
  return parts;
}
