// Connects the parts: the run shown, the worker picked, and updates of runs that go on.

const page = { runs: [], run: null, group: null, map: null, picked: null, workerChart: null, compareGroup: null, every: null };

function tiles(run) {
  const { summary } = run;
  const alive = Object.fromEntries(Object.entries(run.alive).map(([name, values]) => [name, values.at(-1)]));
  return [
    ["steps", whole(run.steps), run.planned && run.planned !== run.steps ? `of ${whole(run.planned)}` : ""],
    ...(run.expects("accuracy") ? [["test accuracy", percent(summary.accuracy), ""]] : []),
    ...(run.expects("loss") ? [["train loss", lossText(run), ""]] : []),
    ...(run.hasServer ? [["server's share", percent(summary.own), ""]] : []),
    ["suspects", String(run.suspects.length), `of ${run.workers}`],
    ...("alive" in alive ? [["workers alive", Number.isNaN(alive.alive) ? "-" : String(alive.alive), `of ${run.workers}`]] : []),
    ["skipped steps", whole(summary.skipped), ""],
    ["per step", seconds(summary.seconds_per_step), ""],
  ];
}

function showTiles(run) {
  byId("tiles").replaceChildren(...tiles(run).map(([name, value, more]) => {
    const shown = make("dd", {}, value);
    if (more) shown.append(make("small", {}, ` ${more}`));
    const tile = make("div", {}, make("dt", {}, name), shown);
    tile.dataset.tile = name;
    return tile;
  }));
}

const POINT = "Point at the map, or move with the arrow keys.";

function showWords(run) {
  const isOne = page.runs.length < 2;
  byId("run-title").textContent = run.headline;
  byId("run-title").setAttribute("aria-level", isOne ? "1" : "2");
  document.title = `${isOne ? run.headline : comparisonTitle()} \u00b7 Zeno`;
  const { suspects } = run;
  byId("verdict").replaceChildren();
  if (suspects.length) byId("verdict").append(make("span", { className: "sign", "aria-hidden": "true" }, "\u25b6 "));
  byId("verdict").append(run.ledger.words);
  show("notes", run.notes.length > 0);
  byId("notes").replaceChildren(...run.notes.map((note) => make("li", {}, note)));
  byId("map-legend").replaceChildren(...mapLegend(run));
  byId("map-words").textContent = mapWords(run);
  byId("ledger-words").textContent = ledgerWords(run);
  showLossWords(run);
  for (const part of ["skipped", "noted"]) {
    show(`${part}-part`, run[part].step.length > 0);
    byId(part).replaceChildren(...textItems(grouped(run[part].step, run[part].text, run.texts)));
  }
  byId("settings").replaceChildren(make("tbody", {}, ...Object.entries(run.settings).map(([name, value]) =>
    make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, value)))));
  show("settings-part", Object.keys(run.settings).length > 0);
}

// Names the task and the faults; one run of a comparison has no faults.
function comparisonTitle() {
  const run = page.runs.reduce((a, b) => (Number(b.settings.faulty ?? 0) > Number(a.settings.faulty ?? 0) ? b : a));
  const tasks = [...new Set(page.runs.map((one) => one.settings.task))];
  const about = [tasks.length === 1 ? tasks[0] : "", run.faults].filter(Boolean).join(", ");
  return about ? `Comparison: ${about}` : "Comparison";
}

function mapWords(run) {
  const parts = [];
  if (!run.steps) return "";
  if (!run.ranks) parts.push("This rule gives no scores: the map shows which workers were kept, and which replies were unusable.");
  else parts.push("A faulty worker stands out as a dark row. At steps where no worker was kept (the update is the server's own gradient, or there is none), the shade shows the score only.");
  if (run.bin > 1) parts.push(`The run is long: a column stands for ${run.bin} steps, and shows the mean rank, the mean weight and the share of steps dropped.`);
  return parts.join(" ");
}

function ledgerWords(run) {
  const { error_rate: rate, threshold } = run.ledger;
  return `Evidence: the value of a one-unit bet that this worker fails too often, or harms. For a good worker it ever reaches N with a probability of at most 1 / N. ${odds(threshold)} makes a worker suspect (there the bar is full; its scale is logarithmic). Among runs without faults whose workers have similar data, at most ${figure(100 * rate, 2)} % ever have a suspect.`;
}

function showLossWords(run) {
  const broken = [];
  run.lines.loss.forEach((value, c) => { if (value === Infinity) broken.push(c * run.bin); });
  show("loss-words", broken.length > 0);
  byId("loss-words").textContent = broken.length ? `The loss was not finite at ${counted(broken.length, "evaluation")}, first after step ${whole(broken[0])}.` : "";
}

function textItems(found) {
  return found.slice(0, 50).map(([text, steps]) => make("li", {}, `${text} (${counted(steps.length, "step")}: ${ranges(steps)})`));
}

function showTime(run) {
  byId("time-legend").replaceChildren(...Object.keys(run.seconds).map((name, k) => make("span", {}, swatch(k, true), name)));
  byId("alive-legend").replaceChildren(...Object.keys(run.alive).map((name, k) => make("span", {}, swatch(k), name)));
  const { longest } = run.peaks;
  const isTimed = Object.keys(run.seconds).length > 0;
  byId("time-words").textContent = isTimed && longest ? `Means over the steps around each point. The longest step was ${whole(longest.step)}, with ${seconds(longest.seconds)}.` : "";
  page.phaseTable.fill(phasesOf(run));
  show("phases-part", isTimed);
  const shown = [showFigure("time", isTimed), showFigure("alive", Object.keys(run.alive).length > 0)];
  show("time-part", shown.some(Boolean));
}

function rowsInOrder(run) {
  const { sort, show: which } = { sort: byId("sort").value, show: byId("show").value };
  let rows = [...run.ledger.rows];
  const server = which === "all" && run.hasServer ? [SERVER] : [];
  if (which === "suspects") rows = rows.filter((row) => row.verdict === "suspect");
  if (which === "picked" && page.picked !== null) rows = rows.filter((row) => row.worker === page.picked);
  const by = { number: (row) => -row.worker, evidence: (row) => row.evidence, dropped: (row) => row.dropped ?? -1 }[sort];
  return [...rows.sort((a, b) => by(b) - by(a) || a.worker - b.worker).map((row) => row.worker), ...server];
}

function arrange() {
  if (!page.map) return;
  const order = rowsInOrder(page.run);
  byId("map").classList.toggle("empty", !order.length);
  if (!order.length) byId("readout").textContent = "No worker is suspect, so the map is empty. Choose all workers.";
  else if (page.map.isEmpty) byId("readout").textContent = POINT;
  page.map.isEmpty = !order.length;
  page.map.arrange(order);
}

function pick(worker) {
  if (!page.map) return;
  const isKnown = worker !== null && worker >= 0 && worker < page.run.workers;
  page.picked = isKnown ? worker : null;
  page.map.picked = page.picked;
  byId("pick").value = page.picked === null ? "" : page.run.nameOf(page.picked);
  if (page.picked === null && byId("show").value === "picked") byId("show").value = "all";
  showWorker();
  page.ledgerTable.fill(page.run.ledger.rows);
  arrange();
}

function showWorker() {
  const { run, picked } = page;
  if (page.workerChart) {
    page.group.charts = page.group.charts.filter((chart) => chart !== page.workerChart);
    page.workerChart.destroy();
    page.workerChart = null;
  }
  show("worker-part", picked !== null);
  if (picked === null) return;
  byId("worker-title").textContent = `Worker ${run.nameOf(picked)}`;
  fillWorker();
  show("worker-chart", run.ranks);
  show("worker-legend", run.ranks);
  if (run.ranks) page.workerChart = workerChart(run, page.group, picked);
}

function fillWorker() {
  const { run, picked } = page;
  const row = run.ledger.rows[picked];
  const verdict = row.verdict === "suspect" ? `Suspect since step ${whole(row.since)}: ${row.reason}.` : row.verdict === "mended" ? `Was suspect (${row.reason}), and has shown since step ${whole(row.since)} that it is healthy.` : row.left_out ? "Left out of nearly all updates lately, without proof of a fault." : "Not suspect: there is too little evidence.";
  const known = row.faulty === null ? "" : row.faulty > 0 ? " It was made faulty in this simulation." : " It was not made faulty in this simulation.";
  byId("worker-words").textContent = `${verdict} Evidence ${odds(row.evidence)}, dropped at ${percent(row.dropped)} of the steps at which it was asked.${known}`;
  byId("worker-legend").replaceChildren(
    make("span", {}, swatchOf("--s1", []), "its score"), make("span", {}, swatchOf("--s3", DASHES[1]), "median of all workers"),
    make("span", {}, swatchOf("--s2", DASHES[2]), "best of all workers"), make("span", {}, make("b", {}, "ticks at the bottom: dropped; above them: no usable reply")));
  const found = run.errorsOf(picked);
  byId("worker-errors").replaceChildren(found.length ? make("ul", { className: "texts" }, ...textItems(found)) : make("p", { className: "small" }, "All its replies were usable, or it was not asked."));
}

function swatchOf(colour, dash) {
  const svg = swatch(0);
  svg.firstChild.style.stroke = `var(${colour})`;
  svg.firstChild.setAttribute("stroke-dasharray", dash.join(" "));
  return svg;
}

// The charts depend on this; when it changes, they are made again.
function shape(run) {
  return JSON.stringify([run.columns > 0, run.workers, run.ranks, run.hasServer, run.expects("accuracy"), run.expects("loss"), Object.keys(run.seconds), Object.keys(run.alive)]);
}

function reopen(run) {
  const { view } = page.group;
  open(run);
  page.group.view = view;
  page.group.apply();
}

// Opens a run.
function open(run) {
  page.group?.destroy();
  Object.assign(page, { run, picked: null, workerChart: null, map: null, shape: shape(run) });
  page.group = new Group(() => run.steps);
  show("run-part", true);
  show("worker-part", false);
  byId("show").value = "all";
  byId("pick").value = "";
  byId("readout").textContent = POINT;
  showTiles(run);
  showWords(run);
  showTime(run);
  page.ledgerTable.fill(run.ledger.rows);
  if (run.columns) draw(run);
  if (page.compareTable) page.compareTable.fill(page.runs);
  byId("run").value = run.name;
}

function draw(run) {
  page.map = new WorkerMap(run, page.group, { onPick: (worker) => pick(worker === page.picked ? null : worker) });
  const drawn = [["accuracy", accuracyChart], ["loss", lossChart]].filter(([id]) => showFigure(id, run.expects(id)));
  show("curves-part", drawn.length > 0);
  page.charts = drawn.map(([, chart]) => chart(run, page.group));
  if (Object.keys(run.seconds).length) page.charts.push(timeChart(run, page.group));
  if (Object.keys(run.alive).length) page.charts.push(aliveChart(run, page.group));
  for (const [id, values] of [["accuracy-value", run.lines.accuracy], ["loss-value", run.lines.loss]]) {
    byId(id).textContent = values.every(Number.isNaN) ? "not evaluated yet" : "";
  }
  arrange();
}

// Updates the page when the run shown has new steps.
function refresh(run) {
  showTiles(run);
  showWords(run);
  showTime(run);
  page.ledgerTable.fill(run.ledger.rows);
  if (page.shape !== shape(run)) { reopen(run); return; }
  page.group.quietly((chart) => chart.refresh());
  if (page.picked !== null) fillWorker();
  arrange();
}

function showComparison() {
  const { runs } = page;
  show("compare-part", runs.length > 1);
  if (runs.length < 2) return;
  byId("compare-title").textContent = comparisonTitle();
  page.compareTable ??= compareTable({ onPick: open, picked: (run) => run === page.run });
  page.compareTable.fill(runs);
  byId("run").replaceChildren(...runs.map((run) => make("option", { value: run.name }, run.name)));
  if (page.run) byId("run").value = page.run.name;
  page.compareGroup?.destroy();
  page.compareGroup = new Group(() => Math.max(...page.runs.map((run) => run.steps)));
  const values = runs.map(() => make("b"));
  byId("compare-legend").replaceChildren(...runs.map((run, k) => make("span", {}, swatch(k), make("span", {}, run.name), values[k])));
  compareCharts(runs, page.compareGroup);
  page.compareGroup.listeners.push((step) => runs.forEach((run, k) => {
    const [xs, ys] = there(run, run.lines.accuracy);
    const i = step === null ? -1 : nearest(xs, step);
    values[k].textContent = i < 0 ? "" : percent(ys[i]);
  }));
}

function onMapKey(event) {
  const { map, group } = page;
  if (!map || !map.order.length || event.ctrlKey || event.metaKey || event.altKey) return;
  const by = event.shiftKey ? 10 : 1;
  const actions = {
    ArrowLeft: () => map.move(-by, 0), ArrowRight: () => map.move(by, 0),
    ArrowUp: () => map.move(0, -by), ArrowDown: () => map.move(0, by),
    Home: () => map.move(-page.run.steps, 0), End: () => map.move(page.run.steps, 0),
    "+": () => group.scale(0.5, map.at.step), "=": () => group.scale(0.5, map.at.step), "-": () => group.scale(2, map.at.step),
    Enter: () => pick(map.order[map.at.row]), Escape: () => group.whole(),
  };
  if (!(event.key in actions)) return;
  event.preventDefault();
  actions[event.key]();
  if (["+", "=", "-", "Escape"].includes(event.key)) map.move(0, 0);
}

function bindControls() {
  byId("sort").addEventListener("change", arrange);
  byId("show").addEventListener("change", () => {
    if (byId("show").value === "picked" && page.picked === null) pick(page.map?.order[page.map.at.row] ?? 0);
    else arrange();
  });
  byId("pick").addEventListener("change", () => pick(page.run.ledger.rows.find((row) => row.name === byId("pick").value.trim())?.worker ?? null));
  byId("unpick").addEventListener("click", () => { pick(null); byId("map").focus(); });
  byId("whole").addEventListener("click", () => page.group?.whole());
  byId("in").addEventListener("click", () => page.group?.scale(0.5, page.map?.at.step ?? null));
  byId("out").addEventListener("click", () => page.group?.scale(2, page.map?.at.step ?? null));
  byId("earlier").addEventListener("click", () => page.group?.shift(-0.5));
  byId("later").addEventListener("click", () => page.group?.shift(0.5));
  byId("run").addEventListener("change", () => open(page.runs.find((run) => run.name === byId("run").value)));
  byId("map").addEventListener("keydown", onMapKey);
  byId("map").addEventListener("focus", () => { if (page.map?.order.length && byId("map").matches(":focus-visible")) page.map.move(0, 0); });
}

// Light, dark, or as the system; remembered if the browser allows storage for files.
function bindTheme() {
  const themes = ["automatic", "light", "dark"];
  const apply = (theme) => {
    if (theme === "automatic") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    byId("theme").textContent = `Theme: ${theme}`;
    recolour();
  };
  let theme = "automatic";
  try { theme = localStorage.getItem("zeno-theme") ?? theme; } catch { /* files may have no storage */ }
  apply(themes.includes(theme) ? theme : "automatic");
  byId("theme").addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    try { localStorage.setItem("zeno-theme", theme); } catch { /* the same */ }
    apply(theme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  matchMedia("print").addEventListener("change", recolour);
  addEventListener("beforeprint", () => onPaper(true));
  addEventListener("afterprint", () => onPaper(false));
}

// Charts have to be resized before the browser applies the print layout.
function onPaper(isPrinted) {
  document.documentElement.classList.toggle("paper", isPrinted);
  recolour();
}

function recolour() {
  colours.clear();
  for (const group of [page.group, page.compareGroup]) {
    group?.quietly((chart) => { chart.fit(); chart.plot.redraw(false, true); });
  }
}

function say(state, text) {
  show("status", true);
  byId("status").dataset.state = state;
  if (byId("status").textContent !== text) byId("status").textContent = text;
}

async function ask(run) {
  const query = run ? new URLSearchParams({ run: run.name, generation: run.generation, step: run.steps }) : "";
  try {
    const answer = await fetch(`/since?${query}`, { cache: "no-store" });
    if (!answer.ok) throw new Error(`the server returned ${answer.status}`);
    return await answer.json();
  } catch (error) {
    throw new Gone(error.message);
  }
}

class Gone extends Error {}

// Loads new steps of a run; a run of another generation is reloaded from its first step.
async function follow(name, is) {
  let run = page.runs.find((one) => one.name === name);
  if (run && run.generation === is.generation && run.numLines === is.num_lines) return false;
  const isNew = !run;
  run ??= Object.assign(new Run(), { name });
  const { run: chunk } = await ask(run);
  if (!chunk) return false;
  if (chunk.from === 0) Object.assign(run, new Run());
  await run.take(chunk);
  if (isNew) page.runs.push(run);
  if (!page.run) open(run);
  else if (page.run === run) refresh(run);
  return true;
}

async function poll() {
  const { runs } = await ask(null);
  let changed = false;
  for (const is of runs) {
    changed = (await follow(is.name, is)) || changed;
    const run = page.runs.find((one) => one.name === is.name);
    if (run) run.over = is.over;
  }
  show("none", !page.runs.length);
  if (changed) showComparison();
  const going = runs.filter((is) => !is.over).length;
  if (runs.length && !going) say("over", runs.length > 1 ? "all runs have ended" : "the run has ended");
  else say("live", runs.length > 1 ? `live, ${going} of ${runs.length} runs in progress` : "live");
}

async function watch() {
  let failures = 0;
  for (;;) {
    try {
      await poll();
      failures = 0;
    } catch (error) {
      if (!(error instanceof Gone)) {
        say("gone", "this page stopped after an error: reload it");
        throw error;
      }
      if (byId("status").dataset.state === "over") return;
      failures++;
      say("gone", "the server is gone: showing the last known state");
    }
    const pause = page.every * Math.min(10, 2 ** failures) * (document.hidden ? 5 : 1);
    await new Promise((done) => { setTimeout(done, 1000 * pause); });
  }
}

// The run to show first: the most accurate one, preferably of a rule that ranks.
function best(runs) {
  const worth = (run) => Number(run.ranks) + (run.summary.accuracy ?? -1) / 2;
  return runs.reduce((found, run) => (worth(run) > worth(found) ? run : found));
}

async function begin() {
  const data = JSON.parse(byId("data").textContent);
  page.every = data.every;
  bindTheme();
  page.ledgerTable = ledgerTable({
    onPick: (row) => pick(row.worker === page.picked ? null : row.worker),
    picked: (row) => row.worker === page.picked,
    threshold: () => page.run.ledger.threshold,
  });
  page.phaseTable = phaseTable();
  page.runs = await Promise.all(data.runs.map(async (chunk) => {
    const run = new Run();
    await run.take(chunk);
    run.over = chunk.over ?? true;
    return run;
  }));
  show("loading", false);
  show("none", !page.runs.length);
  bindControls();
  if (page.runs.length) open(best(page.runs));
  showComparison();
  if (page.every !== null) {
    byId("promise").textContent = "This page is served by this computer, to this computer only.";
    watch();
  }
}

window.zenoReady = begin().catch((error) => {
  byId("loading").hidden = false;
  byId("loading").textContent = `This page could not be drawn: ${error.message}`;
  throw error;
});
