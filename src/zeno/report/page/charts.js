// Charts over the steps. The charts of a group share the visible range of steps and the cursor.

const DASHES = [[], [8, 4], [2, 3], [10, 4, 2, 4], [14, 5], [5, 2, 1, 2, 1, 2]];
const FONT = "12px system-ui, -apple-system, Segoe UI, Roboto, sans-serif";
const colours = new Map();

// The current colour of a CSS variable.
function css(name) {
  if (!colours.has(name)) {
    const probe = make("i");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    colours.set(name, getComputedStyle(probe).color);
    probe.remove();
  }
  return colours.get(name);
}

class Group {
  constructor(length) {
    this.length = length;  // () => number of steps
    this.charts = [];
    this.view = null;  // [first, last] on the axis; null shows the whole run
    this.listeners = [];
    this.at = null;  // the step under the cursor
    this.isQuiet = false;
  }

  range() {
    return this.view ?? [-0.5, Math.max(1, this.length()) - 0.5];
  }

  zoom(min, max) {
    const end = Math.max(1, this.length()) - 0.5;
    const width = Math.max(4, Math.min(max - min, end + 0.5));
    const left = Math.max(-0.5, Math.min(min, end - width));
    this.view = width >= end + 0.5 ? null : [left, left + width];
    this.apply();
  }

  whole() {
    this.view = null;
    this.apply();
  }

  // Zooms by a factor, around a step.
  scale(factor, around) {
    const [min, max] = this.range();
    const at = around === null || around < min || around > max ? (min + max) / 2 : around;
    this.zoom(at - (at - min) * factor, at + (max - at) * factor);
  }

  shift(share) {
    const [min, max] = this.range();
    if (this.view) this.zoom(min + share * (max - min), max + share * (max - min));
  }

  reveal(step) {
    const [min, max] = this.range();
    if (step < min || step > max) this.zoom(step - (max - min) / 2, step + (max - min) / 2);
  }

  apply() {
    const [min, max] = this.range();
    this.quietly((chart) => {
      if (chart.isBinned) chart.plot.setData(chart.data(), false);
      chart.plot.setScale("x", { min, max });
    });
  }

  // Changes all charts at once; the cursor stays at its step, not at its pixel.
  quietly(change) {
    this.isQuiet = true;
    for (const chart of this.charts) chart.plot.batch(() => change(chart));
    this.isQuiet = false;
    this.point(this.at);
  }

  // Moves the cursor of all charts to a step; null hides it.
  point(step, from = null) {
    this.at = step;
    for (const chart of this.charts) {
      if (chart !== from) chart.pointAt(step);
    }
    for (const listener of this.listeners) listener(step, from);
  }

  destroy() {
    for (const chart of this.charts) chart.destroy();
    this.charts = [];
  }
}

class Chart {
  // `options` are passed to uPlot in addition to the common ones; `data()` returns the arrays to draw.
  // `isBinned`: the data depend on the range of steps shown.
  constructor(id, group, data, { height = 220, title, isBinned = false, ...options }) {
    this.holder = byId(id);
    this.holder.replaceChildren();
    if (title) this.holder.setAttribute("aria-label", title);
    if (title && !this.holder.hasAttribute("role")) this.holder.setAttribute("role", "img");
    this.group = group;
    this.data = data;
    this.height = height;
    this.isBinned = isBinned;
    this.plot = new uPlot(this.options(options), data(), this.holder);
    group.charts.push(this);
    this.watch = new ResizeObserver(() => group.quietly((chart) => chart === this && chart.fit()));
    this.watch.observe(this.holder);
  }

  get width() {
    const style = getComputedStyle(this.holder);
    return Math.max(160, Math.floor(this.holder.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight)));
  }

  get tall() {
    return typeof this.height === "function" ? this.height() : this.height;
  }

  options({ scales = {}, axes = [{}, {}], hooks = {}, cursor = {}, ...rest }) {
    const group = this.group;
    return {
      width: this.width,
      height: this.tall,
      padding: [10, 14, 0, 0],
      legend: { show: false },
      scales: { ...scales, x: { time: false, range: () => group.range() } },
      axes: axes.map((axis, i) => ({ ...this.axis(i), ...axis })),
      cursor: {
        y: false,
        drag: { x: true, y: false, setScale: false, dist: 5 },
        bind: { dblclick: () => () => { group.whole(); return null; } },
        points: { size: 7, fill: (plot, i) => plot.series[i].stroke(plot, i) },
        ...cursor,
      },
      hooks: {
        ...hooks,
        setSelect: [(plot) => this.selected(plot)],
        setCursor: [(plot) => this.moved(plot), ...(hooks.setCursor ?? [])],
      },
      ...rest,
    };
  }

  axis(i) {
    return {
      stroke: () => css("--soft"),
      font: FONT,
      grid: { stroke: () => css("--grid"), width: 1 },
      ticks: { stroke: () => css("--grid"), width: 1, size: 4 },
      ...(i === 0
        ? { size: 28, label: "step", labelSize: 20, labelGap: -2, labelFont: FONT, values: (_, at) => at.map((v) => (Number.isInteger(v) ? whole(v) : "")) }
        : { size: 52 }),
    };
  }

  selected(plot) {
    const { left, width } = plot.select;
    if (width > 4) this.group.zoom(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  }

  moved(plot) {
    if (plot !== this.plot || this.group.isQuiet) return;  // the plot is under construction, or this is our own change
    const { left } = plot.cursor;
    this.group.point(left < 0 ? null : plot.posToVal(left, "x"), this);
  }

  pointAt(step) {
    const left = step === null ? -10 : this.plot.valToPos(step, "x");
    const isInside = step !== null && left >= 0 && left <= this.plot.over.clientWidth;
    this.plot.setCursor(isInside ? { left, top: 10 } : { left: -10, top: -10 }, false);
  }

  // Reloads the data; the range of steps stays unless it is the whole run.
  refresh() {
    const [min, max] = this.group.range();
    this.plot.setData(this.data(), true);
    this.plot.setScale("x", { min, max });
  }

  fit() {
    const { width, tall } = this;
    if (width !== this.plot.width || tall !== this.plot.height) this.plot.setSize({ width, height: tall });
  }

  destroy() {
    this.watch.disconnect();
    this.plot.destroy();
    this.holder.replaceChildren();
  }
}

function line(k, more = {}) {
  return {
    stroke: () => css(`--s${(k % 6) + 1}`),
    dash: DASHES[k % DASHES.length],
    width: 2,
    spanGaps: true,
    points: { size: 5, show: (_, __, first, last) => last - first < 60, fill: () => css("--plate") },
    ...more,
  };
}

// A sample of a line, for a legend.
function swatch(k, isArea = false) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const shape = document.createElementNS("http://www.w3.org/2000/svg", isArea ? "rect" : "line");
  const set = (element, values) => Object.entries(values).forEach(([name, value]) => element.setAttribute(name, value));
  set(svg, { width: isArea ? 14 : 34, height: 12, "aria-hidden": "true" });
  set(shape, isArea ? { width: 14, height: 12, rx: 2 } : { x1: 0, x2: 34, y1: 6, y2: 6, "stroke-width": 2.5, "stroke-dasharray": DASHES[k % DASHES.length].join(" ") });
  shape.style[isArea ? "fill" : "stroke"] = `var(--${isArea ? "a" : "s"}${(k % 6) + 1})`;
  svg.append(shape);
  return svg;
}

// [steps, values] of a line, without the columns that have no value.
function there(run, values) {
  const xs = [], ys = [];
  values.forEach((value, column) => {
    if (Number.isNaN(value)) return;
    xs.push(run.middle(column));
    ys.push(Number.isFinite(value) ? value : null);
  });
  return [xs, ys];
}

const unit = { range: (_, low) => [Math.min(0, low ?? 0), 1] };

// Logarithmic if the values are positive and far apart.
function lossScale(values) {
  const found = values.filter((value) => value !== null && value !== undefined);
  const [low, high] = found.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, 0]);
  return low > 0 && high > 20 * low ? { distr: 3, range: logRange } : {};
}

function logRange(_, min, max) {
  const room = min > 0 ? Math.max(1.05, (max / min) ** 0.06) : 1.1;
  return min > 0 ? [min / room, max * room] : [0.1, 10];
}

const lossAxis = ({ distr }) => ({
  values: (_, at) => at.map((v) => (v === null ? "" : figure(v, 3))),
  ...(distr === 3 && { splits: (_, __, min, max) => logSplits(min, max), filter: (_, at) => at }),
});

// 1, 2 and 5 times powers of ten; uPlot's own do not end for some ranges.
function logSplits(min, max) {
  const [low, high] = [Math.floor(Math.log10(min)), Math.ceil(Math.log10(max))];
  const found = [], by = Math.ceil((high - low) / 6);
  for (let power = low; power <= high; power += by) found.push(...(by > 1 ? [1] : [1, 2, 5]).map((digit) => digit * 10 ** power));
  const inside = found.filter((value) => value >= min && value <= max);
  return inside.length > 1 ? inside : [min, max];
}

function nearest(xs, x) {
  let best = -1;
  for (let i = 0; i < xs.length; i++) if (best < 0 || Math.abs(xs[i] - x) < Math.abs(xs[best] - x)) best = i;
  return best;
}

function accuracyChart(run, group) {
  const chart = new Chart("accuracy", group, () => there(run, run.lines.accuracy), {
    title: "Test accuracy by step",
    scales: { y: unit },
    axes: [{}, { values: (_, at) => at.map((v) => `${Math.round(100 * v)} %`) }],
    series: [{}, line(0)],
  });
  group.listeners.push(valueAt(chart, "accuracy-value", (value) => percent(value)));
  return chart;
}

function lossChart(run, group) {
  const data = () => there(run, run.lines.loss), scale = lossScale(data()[1]);
  const chart = new Chart("loss", group, data, {
    title: "Train loss by step",
    scales: { y: scale },
    axes: [{}, lossAxis(scale)],
    series: [{}, line(1)],
  });
  group.listeners.push(valueAt(chart, "loss-value", (value) => figure(value)));
  return chart;
}

// Shows the value of the first line nearest to the cursor.
function valueAt(chart, id, format) {
  return (step) => {
    const [xs, ys] = chart.plot.data;
    const i = step === null ? -1 : nearest(xs, step);
    if (xs.length) byId(id).textContent = i < 0 ? "" : `${ys[i] === null ? "not finite" : format(ys[i])} after step ${whole(xs[i])}`;
  };
}

function workerChart(run, group, worker) {
  const data = () => {
    const { median, best } = run.scoresOfAll();
    const own = Float32Array.from({ length: run.columns }, (_, c) => run.cells.score[c * run.workers + worker]);
    const xs = Array.from({ length: run.columns }, (_, c) => run.middle(c));
    return [xs, own, median, best].map((values, i) => (i ? Array.from(values, (v) => (Number.isNaN(v) ? null : v)) : values));
  };
  const sizes = data().slice(1, 3).flat().filter((v) => v !== null && v !== 0).map(Math.abs).sort((a, b) => a - b);
  const typical = sizes[sizes.length >> 1] ?? 1;
  const isWide = sizes.length > 0 && sizes.at(-1) > 100 * typical;  // a score of -10^9 would flatten all the others
  return new Chart("worker-chart", group, data, {
    title: `Scores of worker ${run.nameOf(worker)} by step, with the median and the best of all workers`,
    height: 240,
    scales: { y: isWide ? { distr: 4, asinh: typical } : {} },
    axes: [{}, { size: 72, values: (_, at) => at.map((v) => (v === null ? "" : figure(v, 3))) }],
    series: [{}, line(0), line(2, { dash: DASHES[1], width: 1.5, points: { show: false } }), line(1, { dash: DASHES[2], width: 1.5, points: { show: false } })],
    hooks: { draw: [(plot) => drawRug(plot, run, worker)] },
  });
}

// Ticks at the bottom: where the worker was dropped; above them: where its reply was unusable.
function drawRug(plot, run, worker) {
  const { ctx, bbox } = plot;
  const ratio = uPlot.pxRatio;
  for (const [bit, colour, floor] of [[DROPPED, "--ink", 0], [ERROR, "--s6", 9]]) {
    ctx.fillStyle = css(colour);
    for (let c = 0; c < run.columns; c++) {
      if (!(run.cells.state[c * run.workers + worker] & bit)) continue;
      const x = plot.valToPos(run.middle(c), "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.fillRect(Math.round(x - ratio / 2), bbox.top + bbox.height - (floor + 8) * ratio, ratio, 7 * ratio);
    }
  }
}

function compareCharts(runs, group) {
  const charts = [];
  const shown = ([id, name]) => showFigure(id, runs.some((run) => run.expects(name)));
  for (const [id, name, scale, axis] of [
    ["compare-accuracy", "accuracy", () => unit, () => ({ values: (_, at) => at.map((v) => `${Math.round(100 * v)} %`) })],
    ["compare-loss", "loss", lossScale, lossAxis],
  ].filter(shown)) {
    const data = () => uPlot.join(runs.map((run) => there(run, run.lines[name])));
    const y = scale(data().slice(1).flatMap((values) => [...values]));
    charts.push(new Chart(id, group, data, {
      title: name === "loss" ? "Train loss of the runs by step" : "Test accuracy of the runs by step",
      height: 260,
      scales: { y },
      axes: [{}, axis(y)],
      series: [{}, ...runs.map((_, k) => line(k, { points: { show: false } }))],
    }));
  }
  return charts;
}
